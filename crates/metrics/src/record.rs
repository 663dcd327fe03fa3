//! The rows of `metrics.jsonl`.
//!
//! Numbers are printed in the shortest form that reads back to the same value of their own type:
//! equal losses give equal text, and the f32 0.3 is `0.3`. NaN and infinities, which JSON does
//! not have, are `null`; which of them each was stands in `non_finite`, the last field of such a row:
//! `{"step":7,"loss":null,...,"non_finite":{"loss":"NaN"}}`, in the words `NaN`, `Infinity`, `-Infinity`.

use indexmap::IndexMap;
use serde::{Serialize, Serializer};

use crate::error::{Error, Result};

/// The fields that depend on the clock. Two runs that compute the same agree in all others.
pub const TIME_KEYS: [&str; 7] = [
    "tokens_per_second",
    "step_time_ms",
    "data_wait_ms",
    "forward_ms",
    "backward_ms",
    "optimizer_ms",
    "sync_ms",
];

/// The field that tells what the nulls of a row are.
pub const NON_FINITE: &str = "non_finite";

const STEP_KEYS: [&str; 11] = [
    "step",
    "loss",
    "lr",
    "grad_norm",
    "tokens",
    TIME_KEYS[0],
    TIME_KEYS[1],
    TIME_KEYS[2],
    TIME_KEYS[3],
    TIME_KEYS[4],
    TIME_KEYS[5],
];
const VAL_KEYS: [&str; 2] = ["step", "val_loss"];

/// Further values of a row, in the order in which they were added.
pub type Scalars = IndexMap<String, Scalar>;

/// A number that remembers its type, so that it is printed with no more digits than it has.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Scalar {
    /// Single precision.
    F32(f32),
    /// Double precision.
    F64(f64),
    /// A whole number.
    Int(i64),
}

impl Scalar {
    /// The number, whatever its type.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::F32(x) => x.into(),
            Self::F64(x) => x,
            Self::Int(x) => x as f64,
        }
    }
}

impl From<f32> for Scalar {
    fn from(x: f32) -> Self {
        Self::F32(x)
    }
}

impl From<f64> for Scalar {
    fn from(x: f64) -> Self {
        Self::F64(x)
    }
}

impl From<i64> for Scalar {
    fn from(x: i64) -> Self {
        Self::Int(x)
    }
}

/// One optimizer step.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct StepRecord {
    /// Steps done, this one included: the first is 1.
    pub step: u64,
    /// Mean over the step's tokens, in nats.
    pub loss: f32,
    /// Learning rate used in this step.
    pub lr: f64,
    /// Global L2 norm before clipping.
    pub grad_norm: f32,
    /// Tokens seen since the run began, this step's included.
    pub tokens: u64,
    /// What the trainer reports besides.
    #[serde(flatten)]
    pub scalars: Scalars,
    /// Tokens of the step over its time.
    #[serde(serialize_with = "three_decimals")]
    pub tokens_per_second: f64,
    /// Time of the step, milliseconds.
    #[serde(serialize_with = "three_decimals")]
    pub step_time_ms: f64,
    /// Of that, what the step waited for its batches, milliseconds.
    #[serde(serialize_with = "three_decimals")]
    pub data_wait_ms: f64,
    /// Of that, its forward passes, copies to the device included, milliseconds. On a device that works by itself this
    /// and what follows is the time of its launches, and `optimizer_ms` has what it was waited for.
    #[serde(serialize_with = "three_decimals")]
    pub forward_ms: f64,
    /// Of that, its backward passes, milliseconds.
    #[serde(serialize_with = "three_decimals")]
    pub backward_ms: f64,
    /// Of that, judging it, clipping and the optimizers, milliseconds.
    #[serde(serialize_with = "three_decimals")]
    pub optimizer_ms: f64,
}

impl StepRecord {
    /// Its numbers but the step, by their names in a row; without the scalars.
    pub(crate) fn numbers(&self) -> [(&'static str, f64); 10] {
        [
            ("loss", self.loss.into()),
            ("lr", self.lr),
            ("grad_norm", self.grad_norm.into()),
            ("tokens", self.tokens as f64),
            (TIME_KEYS[0], self.tokens_per_second),
            (TIME_KEYS[1], self.step_time_ms),
            (TIME_KEYS[2], self.data_wait_ms),
            (TIME_KEYS[3], self.forward_ms),
            (TIME_KEYS[4], self.backward_ms),
            (TIME_KEYS[5], self.optimizer_ms),
        ]
    }
}

/// One pass over the validation split.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ValRecord {
    /// Steps done when it was made.
    pub step: u64,
    /// Mean over the split's tokens, in nats.
    pub val_loss: f32,
    /// What the trainer reports besides, as `val_NAME`.
    #[serde(flatten)]
    pub scalars: Scalars,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Record {
    /// Of one optimizer step.
    Step(StepRecord),
    /// Of one validation.
    Val(ValRecord),
}

impl Record {
    /// Steps done when it was made.
    pub fn step(&self) -> u64 {
        match self {
            Self::Step(r) => r.step,
            Self::Val(r) => r.step,
        }
    }

    /// What the trainer reports besides.
    pub fn scalars(&self) -> &Scalars {
        match self {
            Self::Step(r) => &r.scalars,
            Self::Val(r) => &r.scalars,
        }
    }

    /// The values that JSON cannot have, by name, as JavaScript would write them.
    fn non_finite(&self) -> IndexMap<&str, &'static str> {
        let fields = match self {
            Self::Step(r) => r.numbers().to_vec(),
            Self::Val(r) => vec![("val_loss", f64::from(r.val_loss))],
        };
        let scalars = self.scalars().iter();
        let scalars = scalars.map(|(key, value)| (key.as_str(), value.to_f64()));
        let all = fields.into_iter().chain(scalars);
        let words = all.filter_map(|(key, value)| Some((key, word(value)?)));
        words.collect()
    }

    /// The row as one line, its newline included.
    pub(crate) fn to_line(&self) -> Result<String> {
        let keys = match self {
            Self::Step(_) => STEP_KEYS.as_slice(),
            Self::Val(_) => VAL_KEYS.as_slice(),
        };
        let is_reserved = |key: &str| keys.contains(&key) || key == NON_FINITE;
        if let Some(key) = self.scalars().keys().find(|key| is_reserved(key)) {
            return Err(Error::ReservedKey(key.clone()));
        }
        let mut line = serde_json::to_string(self).expect("string keys and numbers only");
        let words = self.non_finite();
        if !words.is_empty() {
            let words = serde_json::to_string(&words).expect("strings only");
            line.insert_str(line.len() - 1, &format!(",\"{NON_FINITE}\":{words}"));
        }
        line.push('\n');
        Ok(line)
    }
}

impl From<StepRecord> for Record {
    fn from(record: StepRecord) -> Self {
        Self::Step(record)
    }
}

impl From<ValRecord> for Record {
    fn from(record: ValRecord) -> Self {
        Self::Val(record)
    }
}

/// What stands for a number that is not finite.
fn word(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value.is_infinite() {
        Some(if value > 0.0 { "Infinity" } else { "-Infinity" })
    } else {
        None
    }
}

/// More digits of a time are noise.
fn three_decimals<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((x * 1e3).round() / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_record() -> StepRecord {
        StepRecord {
            step: 7,
            loss: 0.3,
            lr: 5e-5,
            grad_norm: 1.1,
            tokens: 7000,
            scalars: Scalars::from([
                ("z_loss".into(), 0.1f32.into()),
                ("accuracy".into(), 0.1f64.into()),
                ("experts".into(), 3i64.into()),
            ]),
            tokens_per_second: 12345.678912,
            step_time_ms: 81.0,
            data_wait_ms: 0.25,
            forward_ms: 30.0,
            backward_ms: 45.5,
            optimizer_ms: 5.0,
        }
    }

    #[test]
    fn row_is_one_line_in_a_fixed_order_with_times_last() {
        assert_eq!(
            Record::from(step_record()).to_line().unwrap(),
            "{\"step\":7,\"loss\":0.3,\"lr\":0.00005,\"grad_norm\":1.1,\"tokens\":7000,\
             \"z_loss\":0.1,\"accuracy\":0.1,\"experts\":3,\
             \"tokens_per_second\":12345.679,\"step_time_ms\":81.0,\"data_wait_ms\":0.25,\
             \"forward_ms\":30.0,\"backward_ms\":45.5,\"optimizer_ms\":5.0}\n"
        );
        let val = ValRecord {
            step: 7,
            val_loss: 2.7,
            ..ValRecord::default()
        };
        let line = Record::from(val).to_line().unwrap();
        assert_eq!(line, "{\"step\":7,\"val_loss\":2.7}\n");
    }

    #[test]
    fn every_f32_reads_back_from_its_text() {
        // A walk over all exponents and many mantissas.
        for bits in (0..f32::INFINITY.to_bits()).step_by(65_537) {
            let loss = f32::from_bits(bits);
            let record = StepRecord {
                loss,
                ..step_record()
            };
            let line = Record::from(record).to_line().unwrap();
            let row: serde_json::Value = serde_json::from_str(&line).unwrap();
            let text = row["loss"].to_string();
            assert_eq!(text.parse::<f32>().unwrap().to_bits(), bits, "{text}");
        }
    }

    #[test]
    fn loss_that_is_no_number_is_null_and_the_row_says_which() {
        for (loss, word) in [
            (f32::NAN, "NaN"),
            (f32::INFINITY, "Infinity"),
            (f32::NEG_INFINITY, "-Infinity"),
        ] {
            let mut record = StepRecord {
                loss,
                ..step_record()
            };
            record.scalars.insert("z_loss".into(), f32::NAN.into());
            let line = Record::from(record).to_line().unwrap();
            let row: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert!(row["loss"].is_null() && row["z_loss"].is_null(), "{line}");
            let expected =
                format!(",\"non_finite\":{{\"loss\":\"{word}\",\"z_loss\":\"NaN\"}}}}\n");
            assert!(line.ends_with(&expected), "{line}");
        }
        let line = Record::from(step_record()).to_line().unwrap();
        assert!(!line.contains("non_finite"), "{line}");
    }

    #[test]
    fn scalar_with_the_name_of_a_field_is_refused() {
        for key in STEP_KEYS.into_iter().chain([NON_FINITE]) {
            let mut record = step_record();
            record.scalars.insert(key.into(), 1.0f32.into());
            let error = Record::from(record).to_line().unwrap_err();
            assert!(matches!(error, Error::ReservedKey(k) if k == key));
        }
    }

    #[test]
    fn reserved_keys_are_the_fields() {
        let fields = |record: Record| {
            let value = serde_json::to_value(record).unwrap();
            let keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
            keys
        };
        assert_eq!(fields(StepRecord::default().into()), STEP_KEYS);
        assert_eq!(fields(ValRecord::default().into()), VAL_KEYS);
    }
}
