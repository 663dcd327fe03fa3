//! What [`crate::Weights`] asks of one open file, whatever its format.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;

use safetensors::Dtype;
use serde_json::Value;

use crate::{error::Result, tensor::HostTensor};

/// A file of named tensors: what it holds is known, the data is read when asked for.
pub(crate) trait TensorFile: Debug + Send + Sync {
    fn path(&self) -> &Path;

    /// Names in the order of the data.
    fn names(&self) -> Vec<String>;

    /// Type and shape as [`TensorFile::read`] gives them.
    fn info(&self, name: &str) -> Option<(Dtype, &[usize])>;

    fn read(&self, name: &str) -> Result<HostTensor>;

    /// See [`crate::Weights::tokenizer_files`].
    fn tokenizer_files(&self) -> std::result::Result<Option<BTreeMap<String, Vec<u8>>>, String> {
        Ok(None)
    }

    /// See [`crate::Weights::generation_config`].
    fn generation_config(&self) -> std::result::Result<Value, String> {
        Ok(Value::Null)
    }

    /// Replaces the content of `values` by the tensor's, converted to f32.
    fn read_f32(&self, name: &str, values: &mut Vec<f32>) -> Result<()>;

    /// Like [`TensorFile::read_f32`], of these runs of elements alone, which are within the tensor.
    fn read_f32_runs(
        &self,
        name: &str,
        runs: &mut dyn Iterator<Item = Range<usize>>,
        values: &mut Vec<f32>,
    ) -> Result<()> {
        let mut whole = Vec::new();
        self.read_f32(name, &mut whole)?;
        values.clear();
        runs.for_each(|run| values.extend_from_slice(&whole[run]));
        Ok(())
    }
}
