//! What a row holds in a column, whatever kind of file it came from.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A value of a row.
///
/// Integers of any width are one kind and floats another, so a collator need not know how a file stores them. A list of
/// whole numbers, such as token ids, is kept as numbers: see [`Value::Ints`].
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Value {
    /// Nothing.
    #[default]
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer of any width.
    Int(i64),
    /// A float of any width.
    Float(f64),
    /// A string.
    Text(String),
    /// A list of integers without nulls; an empty list is one.
    Ints(Vec<i64>),
    /// Any other list.
    List(Vec<Value>),
    /// A record.
    Struct(Fields),
    /// Of a type that is not read, named here: binary data, for one. It is no error in a column that nobody asks for.
    Other(String),
}

impl Value {
    /// What messages call it.
    pub fn kind(&self) -> &str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a truth value",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::Ints(_) | Self::List(_) => "a list",
            Self::Struct(_) => "a record",
            Self::Other(name) => name,
        }
    }

    /// The string in it.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn for_each_text<'a>(&'a self, see: &mut dyn FnMut(&'a str)) {
        match self {
            Self::Text(text) => see(text),
            Self::List(list) => list.iter().for_each(|value| value.for_each_text(see)),
            Self::Struct(fields) => fields.for_each_text(see),
            _ => {}
        }
    }

    /// An emptied string in its place, to be written; the buffer is the one before if it was a string.
    pub(crate) fn text_mut(&mut self) -> &mut String {
        if !matches!(self, Self::Text(_)) {
            *self = Self::Text(String::new());
        }
        match self {
            Self::Text(text) => {
                text.clear();
                text
            }
            _ => unreachable!("the lines above put a string there"),
        }
    }

    /// An emptied list of integers in its place, to be written, as [`Value::text_mut`].
    pub(crate) fn ints_mut(&mut self) -> &mut Vec<i64> {
        if !matches!(self, Self::Ints(_)) {
            *self = Self::Ints(Vec::new());
        }
        match self {
            Self::Ints(ints) => {
                ints.clear();
                ints
            }
            _ => unreachable!("the lines above put a list there"),
        }
    }
}

/// Values by name, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fields {
    values: Vec<(String, Value)>,
    /// Columns that there are and that were not read, as nobody asks for them.
    unread: Vec<Unread>,
}

/// A column that was not read, for messages.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Unread {
    pub(crate) name: String,
    pub(crate) is_text: bool,
}

impl Fields {
    /// The value called `name`, or, where none is called so, the one at the end of a path such as `meta.lang`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let own = self.values.iter().find(|(own, _)| own == name);
        if let Some((_, value)) = own {
            return Some(value);
        }
        let (first, rest) = name.split_once('.')?;
        match self.get(first)? {
            Value::Struct(fields) => fields.get(rest),
            _ => None,
        }
    }

    /// The names, in order, and then those of columns that were not read.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let read = self.values.iter().map(|(name, _)| name);
        let unread = self.unread.iter().map(|it| &it.name);
        read.chain(unread).map(String::as_str)
    }

    /// The names of columns that were not read and hold text.
    pub fn unread_texts(&self) -> impl Iterator<Item = &str> {
        let texts = self.unread.iter().filter(|it| it.is_text);
        texts.map(|it| it.name.as_str())
    }

    /// Names with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// The values, in order.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.values.iter().map(|(_, value)| value)
    }

    /// Calls `see` with each string, those within lists and records too.
    pub fn for_each_text<'a>(&'a self, see: &mut dyn FnMut(&'a str)) {
        self.values().for_each(|value| value.for_each_text(see));
    }

    /// The value called `name`, null if there was none.
    pub fn entry(&mut self, name: &str) -> &mut Value {
        let at = match self.values.iter().position(|(own, _)| own == name) {
            Some(at) => at,
            None => {
                self.values.push((name.to_owned(), Value::Null));
                self.values.len() - 1
            }
        };
        &mut self.values[at].1
    }

    /// Those that are `wanted`; of the others the names.
    pub(crate) fn only(self, wanted: impl Fn(&str) -> bool) -> Self {
        let all = self.values.into_iter();
        let (values, others) = all.partition::<Vec<_>, _>(|(name, _)| wanted(name));
        let others = others.into_iter().map(|(name, value)| Unread {
            is_text: value.as_text().is_some_and(|it| !it.trim().is_empty()),
            name,
        });
        Self {
            values,
            unread: others.collect(),
        }
    }

    #[must_use]
    pub(crate) fn without_unread(self) -> Self {
        let unread = Vec::new();
        Self { unread, ..self }
    }

    pub(crate) fn set_unread(&mut self, unread: &[Unread]) {
        if self.unread != unread {
            self.unread = unread.to_vec();
        }
    }

    /// The first value, called `name` from now on, then the second ..: how a row is written over the one before, whose
    /// buffers are used again where columns are the same. [`Fields::truncate`] leaves out what is not written.
    pub(crate) fn at(&mut self, index: usize, name: &str) -> &mut Value {
        debug_assert!(index <= self.values.len());
        if index == self.values.len() {
            self.values.push((name.to_owned(), Value::Null));
        }
        let (own, value) = &mut self.values[index];
        if own != name {
            name.clone_into(own);
        }
        value
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
    }
}

impl<N: Into<String>> FromIterator<(N, Value)> for Fields {
    fn from_iter<I: IntoIterator<Item = (N, Value)>>(values: I) -> Self {
        let values = values.into_iter();
        Self {
            values: values.map(|(name, value)| (name.into(), value)).collect(),
            unread: Vec::new(),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(Value::Int(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(integer(value))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
                Ok(Value::Float(value))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_owned()))
            }
            fn visit_string<E>(self, text: String) -> Result<Value, E> {
                Ok(Value::Text(text))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
                let mut list = ListBuilder::default();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(list.finish())
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
                fields_of(map).map(Value::Struct)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Record;
        impl<'de> Visitor<'de> for Record {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a record, `{..}`")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Fields, A::Error> {
                fields_of(map)
            }
        }
        deserializer.deserialize_map(Record)
    }
}

/// Of a name that stands twice, the last, as in Python.
fn fields_of<'de, A: MapAccess<'de>>(mut map: A) -> Result<Fields, A::Error> {
    let mut fields = Fields::default();
    while let Some(name) = map.next_key::<String>()? {
        *fields.entry(&name) = map.next_value()?;
    }
    Ok(fields)
}

/// Beyond 2^63 there are hashes, and nothing that is counted.
pub(crate) fn integer(value: u64) -> Value {
    match i64::try_from(value) {
        Ok(value) => Value::Int(value),
        Err(_) => Value::Other(format!("the integer {value}, beyond 63 bits")),
    }
}

/// Numbers as long as there is nothing else.
pub(crate) struct ListBuilder(Result<Vec<i64>, Vec<Value>>);

impl Default for ListBuilder {
    fn default() -> Self {
        Self(Ok(Vec::new()))
    }
}

impl ListBuilder {
    pub(crate) fn push(&mut self, value: Value) {
        match (&mut self.0, value) {
            (Ok(ints), Value::Int(int)) => ints.push(int),
            (Ok(ints), value) => {
                let mut list: Vec<Value> = ints.drain(..).map(Value::Int).collect();
                list.push(value);
                self.0 = Err(list);
            }
            (Err(list), value) => list.push(value),
        }
    }

    pub(crate) fn finish(self) -> Value {
        match self.0 {
            Ok(ints) => Value::Ints(ints),
            Err(list) => Value::List(list),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_the_kinds_of_its_values() {
        let text = r#"{"a": 1, "b": 1.0, "c": [1, 2], "d": [1, null], "e": {"f": "x"}, "g": [], "a": true}"#;
        let fields: Fields = serde_json::from_str(text).unwrap();
        let expected = [
            ("a", Value::Bool(true)), // the last of two
            ("b", Value::Float(1.0)),
            ("c", Value::Ints(vec![1, 2])),
            ("d", Value::List(vec![Value::Int(1), Value::Null])),
            (
                "e",
                Value::Struct([("f", Value::Text("x".into()))].into_iter().collect()),
            ),
            ("g", Value::Ints(vec![])),
        ];
        assert_eq!(fields, expected.into_iter().collect());
        assert_eq!(fields.get("e.f").unwrap().as_text(), Some("x"));
        assert_eq!(fields.get("e.g"), None);
        assert_eq!(fields.get("a.f"), None);
    }

    #[test]
    fn a_name_with_a_point_comes_before_a_path() {
        let text = r#"{"e": {"f": 1}, "e.f": 2}"#;
        let fields: Fields = serde_json::from_str(text).unwrap();
        assert_eq!(fields.get("e.f"), Some(&Value::Int(2)));
    }
}
