//! The key/value pairs of a GGUF file. Errors are sentences that name the key.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;

/// The architectures that are read: name in GGUF, class in Hugging Face.
const ARCHITECTURES: [(&str, &str); 4] = [
    ("gpt2", "GPT2LMHeadModel"),
    ("llama", "LlamaForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
];

pub(super) struct Metadata<'a> {
    values: &'a HashMap<String, Value>,
    pub architecture: &'static str,
    pub class: &'static str,
}

impl<'a> Metadata<'a> {
    /// Errors: an architecture that is not known, a file that is a part of several.
    pub(super) fn new(values: &'a HashMap<String, Value>) -> Result<Self, String> {
        let Some(Value::String(name)) = values.get("general.architecture") else {
            return Err("`general.architecture` is missing".to_owned());
        };
        let known = ARCHITECTURES.iter().find(|(known, _)| known == name);
        let Some(&(architecture, class)) = known else {
            let known = ARCHITECTURES.map(|(known, _)| known).join(", ");
            return Err(format!(
                "the architecture `{name}` is not known; known are {known}"
            ));
        };
        let metadata = Self {
            values,
            architecture,
            class,
        };
        match metadata.plain_integer("split.count")? {
            Some(parts) if parts > 1 => Err(format!(
                "it is one of {parts} parts (`split.count`): merge them with `llama-gguf-split --merge`"
            )),
            _ => Ok(metadata),
        }
    }

    /// `{architecture}.{key}`.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The keys that begin so, in order.
    pub(super) fn keys(&self, prefix: &str) -> Vec<&'a str> {
        let own = self.values.keys().filter_map(|key| {
            let key = key.strip_prefix(self.architecture)?.strip_prefix('.')?;
            key.starts_with(prefix).then_some(key)
        });
        let mut keys: Vec<_> = own.collect();
        keys.sort_unstable();
        keys
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<usize>, String> {
        self.plain_integer(&self.name(key))
    }

    pub(super) fn require(&self, key: &str) -> Result<usize, String> {
        self.integer(key)?
            .ok_or_else(|| format!("`{}` is missing", self.name(key)))
    }

    /// A number, as the decimal that was rounded to it: 1e-6, not the f64 nearest to the f32 nearest to that.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let name = self.name(key);
        match self.values.get(&name) {
            None => Ok(None),
            Some(Value::F32(value)) => Ok(value.to_string().parse().ok()),
            Some(Value::F64(value)) => Ok(Some(*value)),
            Some(other) => Err(wrong_type(&name, "a number", other)),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        let name = self.name(key);
        match self.values.get(&name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&name, "text", other)),
        }
    }

    fn plain_integer(&self, name: &str) -> Result<Option<usize>, String> {
        let Some(value) = self.values.get(name) else {
            return Ok(None);
        };
        let integer = match *value {
            Value::U8(n) => Some(u64::from(n)),
            Value::U16(n) => Some(u64::from(n)),
            Value::U32(n) => Some(u64::from(n)),
            Value::U64(n) => Some(n),
            Value::I8(n) => u64::try_from(n).ok(),
            Value::I16(n) => u64::try_from(n).ok(),
            Value::I32(n) => u64::try_from(n).ok(),
            Value::I64(n) => u64::try_from(n).ok(),
            _ => None,
        };
        match integer.and_then(|n| usize::try_from(n).ok()) {
            Some(integer) => Ok(Some(integer)),
            None => Err(wrong_type(name, "a whole number", value)),
        }
    }
}

fn wrong_type(name: &str, expected: &str, value: &Value) -> String {
    let kind = value.value_type();
    format!("`{name}` must be {expected}, this is of type {kind:?}")
}
