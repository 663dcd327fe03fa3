//! Fields that a collator adds to a batch: declared once, written by example, laid out by the loader.
//!
//! A field has one number for each token, for each target or for each row. Its padding says the type too: f32, i64 or
//! u32. What an example holds is checked against the declaration before it is laid out.

use std::ops::Range;

use tt_data::DataError;

/// The label of a position that the loss leaves out.
pub const IGNORE: i64 = -100;

/// The field that weighs the loss: f32, one for each target.
pub const WEIGHTS: &str = "weights";

/// Fields that every batch has.
pub(crate) const STANDARD: [Field; 4] = [
    Field::new("input_ids", Per::Token, Padding::U32(0)),
    Field::new("labels", Per::Token, Padding::I64(IGNORE)),
    Field::new("segment_ids", Per::Token, Padding::U32(0)),
    Field::new("position_ids", Per::Token, Padding::U32(0)),
];

/// A field of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field {
    /// What a trainer asks for it by.
    pub name: &'static str,
    /// What there is one value of.
    pub per: Per,
    /// What stands where there is no token, or no target.
    pub padding: Padding,
}

/// What a field has one number of for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// A token: `[B, T]`.
    Token,
    /// A label: `[B, T]`. It goes with the label to the position where that is predicted.
    Target,
    /// A row: `[B]`. Of examples that are packed there are several a row, so they cannot have one.
    Row,
}

/// A number of one of the types that fields have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Padding {
    /// Padding of a field of f32.
    F32(f32),
    /// Padding of a field of i64.
    I64(i64),
    /// Padding of a field of u32.
    U32(u32),
}

/// The numbers of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Numbers that are computed with.
    F32(Vec<f32>),
    /// Whole numbers with a sign, such as labels.
    I64(Vec<i64>),
    /// Whole numbers without one, such as ids.
    U32(Vec<u32>),
}

/// The numbers of a field, lent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Slice<'a> {
    /// Of f32.
    F32(&'a [f32]),
    /// Of i64.
    I64(&'a [i64]),
    /// Of u32.
    U32(&'a [u32]),
}

impl Field {
    /// A field of the type that its padding has.
    pub const fn new(name: &'static str, per: Per, padding: Padding) -> Self {
        Self { name, per, padding }
    }

    /// One number for each token; `padding` where there is none.
    pub fn per_token(name: &'static str, padding: impl Into<Padding>) -> Self {
        Self::new(name, Per::Token, padding.into())
    }

    /// One number for each label; `padding` where there is none to predict.
    pub fn per_target(name: &'static str, padding: impl Into<Padding>) -> Self {
        Self::new(name, Per::Target, padding.into())
    }

    /// One number for each row of a batch; `padding` in rows of padding.
    pub fn per_row(name: &'static str, padding: impl Into<Padding>) -> Self {
        Self::new(name, Per::Row, padding.into())
    }

    pub(crate) fn is_per_row(&self) -> bool {
        self.per == Per::Row
    }

    /// The weight of each target in the loss, which is divided by their sum.
    pub const fn weights() -> Self {
        Self::new(WEIGHTS, Per::Target, Padding::F32(0.0))
    }
}

/// Names must differ from each other and from those that every batch has, and `weights` is what it is.
pub(crate) fn check(fields: &[Field]) -> Result<(), DataError> {
    let bad = |field: &Field, message: &str| Err(DataError::field(field.name, message.to_owned()));
    for (i, field) in fields.iter().enumerate() {
        if STANDARD.iter().any(|standard| standard.name == field.name) {
            return bad(field, "every batch has it, so it cannot be declared");
        }
        if fields[..i].iter().any(|other| other.name == field.name) {
            return bad(field, "declared twice");
        }
        if field.name == WEIGHTS && *field != Field::weights() {
            return bad(
                field,
                "must be `Field::weights()`: f32, one for each target",
            );
        }
    }
    Ok(())
}

impl Padding {
    fn type_name(self) -> &'static str {
        match self {
            Self::F32(_) => "f32",
            Self::I64(_) => "i64",
            Self::U32(_) => "u32",
        }
    }
}

impl Values {
    /// None, of the type of `padding`, with room for `capacity`.
    pub(crate) fn empty(padding: Padding, capacity: usize) -> Self {
        match padding {
            Padding::F32(_) => Self::F32(Vec::with_capacity(capacity)),
            Padding::I64(_) => Self::I64(Vec::with_capacity(capacity)),
            Padding::U32(_) => Self::U32(Vec::with_capacity(capacity)),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::F32(values) => values.clear(),
            Self::I64(values) => values.clear(),
            Self::U32(values) => values.clear(),
        }
    }

    /// Makes all `len` of them padding, in the buffer that is there.
    pub(crate) fn fill(&mut self, len: usize, padding: Padding) {
        self.clear();
        match (self, padding) {
            (Self::F32(values), Padding::F32(value)) => values.resize(len, value),
            (Self::I64(values), Padding::I64(value)) => values.resize(len, value),
            (Self::U32(values), Padding::U32(value)) => values.resize(len, value),
            _ => unreachable!("both are of one declared field"),
        }
    }

    /// Makes those of `range` padding.
    pub(crate) fn pad(&mut self, range: Range<usize>, padding: Padding) {
        match (self, padding) {
            (Self::F32(values), Padding::F32(value)) => values[range].fill(value),
            (Self::I64(values), Padding::I64(value)) => values[range].fill(value),
            (Self::U32(values), Padding::U32(value)) => values[range].fill(value),
            _ => unreachable!("both are of one declared field"),
        }
    }

    /// Puts `from[range]` at `start`.
    pub(crate) fn put(&mut self, start: usize, from: &Self, range: Range<usize>) {
        let here = start..start + range.len();
        match (self, from) {
            (Self::F32(to), Self::F32(from)) => to[here].copy_from_slice(&from[range]),
            (Self::I64(to), Self::I64(from)) => to[here].copy_from_slice(&from[range]),
            (Self::U32(to), Self::U32(from)) => to[here].copy_from_slice(&from[range]),
            _ => unreachable!("both are of one declared field"),
        }
    }

    /// Their values, to be read.
    pub fn as_slice(&self) -> Slice<'_> {
        match self {
            Self::F32(values) => Slice::F32(values),
            Self::I64(values) => Slice::I64(values),
            Self::U32(values) => Slice::U32(values),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::U32(values) => values.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A type that fields have: f32, i64 or u32.
pub trait Element: Copy + Into<Padding> {
    #[doc(hidden)]
    const NAME: &'static str;
    #[doc(hidden)]
    fn of(values: &mut Values) -> Option<&mut Vec<Self>>;
}

macro_rules! element {
    ($type:ty, $variant:ident) => {
        impl From<$type> for Padding {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }

        impl Element for $type {
            const NAME: &'static str = stringify!($type);

            fn of(values: &mut Values) -> Option<&mut Vec<Self>> {
                match values {
                    Values::$variant(values) => Some(values),
                    _ => None,
                }
            }
        }
    };
}

element!(f32, F32);
element!(i64, I64);
element!(u32, U32);

/// The values of `name` among an example's fields, to be written.
pub(crate) fn named<'a, E: Element>(
    fields: &'a mut [(Field, Values)],
    name: &str,
) -> Result<&'a mut Vec<E>, DataError> {
    let bad = |message: String| DataError::field(name, message);
    let names: Vec<_> = fields.iter().map(|(field, _)| field.name).collect();
    let Some(i) = names.iter().position(|known| *known == name) else {
        let declared = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        return Err(bad(format!(
            "not declared; the collator's `fields` are: {declared}"
        )));
    };
    let (field, values) = &mut fields[i];
    let declared = field.padding.type_name();
    E::of(values).ok_or_else(|| bad(format!("declared as {declared}, written as {}", E::NAME)))
}
