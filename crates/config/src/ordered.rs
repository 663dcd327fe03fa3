//! A map whose keys stay in the order in which the configuration gives them.
//!
//! Use it for a config field where the order means something, such as patterns of which the first
//! match counts. Other map types are filled in sorted order.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// Marks the schema of an [`Ordered`].
pub(crate) const MARK: &str = "x-ordered";

/// Text keys and values, in the order they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered<V>(pub IndexMap<String, V>);

impl<V> Default for Ordered<V> {
    fn default() -> Self {
        Ordered(IndexMap::new())
    }
}

impl<V> std::ops::Deref for Ordered<V> {
    type Target = IndexMap<String, V>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<V: Serialize> Serialize for Ordered<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(&self.0)
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Ordered<V> {
    /// From a map, or from a sequence of pairs.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Pairs(PhantomData))
    }
}

struct Pairs<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
    type Value = Ordered<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut map = IndexMap::new();
        while let Some((key, value)) = access.next_entry()? {
            map.insert(key, value);
        }
        Ok(Ordered(map))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut map = IndexMap::new();
        while let Some((key, value)) = access.next_element()? {
            map.insert(key, value);
        }
        Ok(Ordered(map))
    }
}

impl<V: JsonSchema> JsonSchema for Ordered<V> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Ordered_{}", V::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "additionalProperties": generator.subschema_for::<V>(),
            (MARK): true,
        })
    }
}
