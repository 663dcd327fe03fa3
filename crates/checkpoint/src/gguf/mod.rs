//! A GGUF file of llama.cpp's as weights to train from: names and rows as Hugging Face has them, values dequantised.
//!
//! The header and the blocks are read by candle's reader; what it means is said in [`names`] and [`config`].
//! Errors: `Malformed` for a file that is not whole, and for an architecture, a tensor, a ggml type or a setting that
//! would change the numbers and is not known here; each is named.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod config;
mod metadata;
mod names;
mod tokenizer;

use std::{
    collections::BTreeMap,
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

use candle_core::{
    Device,
    quantized::gguf_file::{Content, TensorInfo},
};
use indexmap::IndexMap;
use safetensors::Dtype;
use serde_json::Value;

use crate::{
    error::{Error, Result},
    tensor::HostTensor,
    tensor_file::TensorFile,
};
use metadata::Metadata;
use names::Order;

/// Types that candle does not read, by their numbers in ggml.h, which is all that it says of them.
const UNREAD_TYPES: [(u32, &str); 16] = [
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (39, "MXFP4"),
];
const READ_TYPES: &str = "F32, F16, BF16, Q8_0, Q4_0 to Q5_1 and Q2_K to Q8_K";

#[derive(Debug)]
pub(crate) struct GgufFile {
    path: PathBuf,
    content: Content,
    /// By Hugging Face's names, in the order of the data.
    tensors: IndexMap<String, Stored>,
    config: Value,
}

/// A tensor as the file has it.
#[derive(Debug)]
struct Stored {
    name: String,
    shape: Vec<usize>,
    order: Order,
}

impl GgufFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |e| Error::io("read", path, e);
        let malformed = |reason: String| malformed(path, reason);
        let file = File::open(path).map_err(io)?;
        let actual_bytes = file.metadata().map_err(io)?.len();
        let content = Content::read(&mut BufReader::new(file))
            .map_err(|error| malformed(explain(&error.to_string())))?;
        for (name, info) in &content.tensor_infos {
            let expected_bytes = end(info, content.tensor_data_offset)
                .ok_or_else(|| malformed(format!("the size of tensor `{name}` is impossible")))?;
            if expected_bytes > actual_bytes {
                return Err(Error::Truncated {
                    path: path.to_owned(),
                    expected_bytes,
                    actual_bytes,
                });
            }
        }
        let metadata = Metadata::new(&content.metadata).map_err(malformed)?;
        let tensors = names::to_hugging_face(&content, &metadata).map_err(malformed)?;
        let rope_factors = if content.tensor_infos.contains_key(names::ROPE_FACTORS) {
            Some(dequantised(path, &content, names::ROPE_FACTORS)?)
        } else {
            None
        };
        let is_tied = match metadata.architecture {
            // llama.cpp's older converter wrote the embedding a second time, as the head.
            "gpt2" if content.tensor_infos.contains_key(names::HEAD) => {
                let [head, embedding] =
                    [names::HEAD, names::EMBEDDING].map(|name| dequantised(path, &content, name));
                head? == embedding?
            }
            _ => !content.tensor_infos.contains_key(names::HEAD),
        };
        let shapes = |name: &str| tensors.get(name).map(|stored| stored.shape.as_slice());
        let config =
            config::read(&metadata, shapes, rope_factors.as_deref(), is_tied).map_err(malformed)?;
        Ok(Self {
            path: path.to_owned(),
            content,
            tensors,
            config,
        })
    }

    /// What the metadata says of the model, as a Hugging Face `config.json`.
    pub(crate) fn config(&self) -> &Value {
        &self.config
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        self.tensors.get(name).ok_or_else(|| Error::NoTensor {
            path: self.path.clone(),
            name: name.to_owned(),
            nearest: None,
        })
    }
}

impl TensorFile for GgufFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        let stored = self.tensors.get(name)?;
        Some((Dtype::F32, &stored.shape))
    }

    fn read(&self, name: &str) -> Result<HostTensor> {
        let mut values = Vec::new();
        self.read_f32(name, &mut values)?;
        let shape = self.stored(name)?.shape.clone();
        Ok(HostTensor::from_f32(shape, &values))
    }

    fn tokenizer_files(&self) -> std::result::Result<Option<BTreeMap<String, Vec<u8>>>, String> {
        tokenizer::read(&self.content.metadata)
    }

    fn generation_config(&self) -> std::result::Result<Value, String> {
        tokenizer::generation_config(&self.content.metadata)
    }

    fn read_f32(&self, name: &str, values: &mut Vec<f32>) -> Result<()> {
        let stored = self.stored(name)?;
        let read = dequantised(&self.path, &self.content, &stored.name)?;
        *values = stored.order.restored(read, &stored.shape);
        Ok(())
    }
}

/// The tensor `name`, as the file names it, in f32.
fn dequantised(path: &Path, content: &Content, name: &str) -> Result<Vec<f32>> {
    // Opened for each tensor: a shared file would share its position between threads.
    let mut file = File::open(path).map_err(|e| Error::io("read", path, e))?;
    let read = content
        .tensor(&mut file, name, &Device::Cpu)
        .and_then(|tensor| tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1());
    read.map_err(|error| malformed(path, format!("tensor `{name}`: {error}")))
}

fn malformed(path: &Path, reason: String) -> Error {
    Error::Malformed {
        path: path.to_owned(),
        what: "GGUF",
        reason,
    }
}

/// Where the data of a tensor ends in the file; `None` if that is no number.
fn end(info: &TensorInfo, data_start: u64) -> Option<u64> {
    let mut dims = info.shape.dims().iter();
    let elements = dims.try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
    let blocks = elements.checked_div(info.ggml_dtype.block_size())?;
    let bytes = blocks.checked_mul(info.ggml_dtype.type_size())? as u64;
    data_start.checked_add(info.offset)?.checked_add(bytes)
}

/// candle's message, with the name of a type that it does not read.
fn explain(message: &str) -> String {
    // With RUST_BACKTRACE set a backtrace follows.
    let message = message.lines().next().unwrap_or_default();
    let number = message.strip_prefix("unknown dtype for tensor ");
    let number = number.and_then(|rest| rest.trim().parse::<u32>().ok());
    let Some(number) = number else {
        return message.to_owned();
    };
    let known = UNREAD_TYPES.iter().find(|(known, _)| *known == number);
    let name = known.map_or_else(
        || format!("number {number}"),
        |(_, name)| (*name).to_owned(),
    );
    format!("it has tensors of the ggml type {name}; read are {READ_TYPES}")
}
