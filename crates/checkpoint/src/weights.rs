//! Weights on disk, of any origin: a folder, a `.safetensors` file, a shard index, or a `.gguf` file.
//! Tensors are read one at a time, when asked for.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use indexmap::IndexMap;
use safetensors::Dtype;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::{Error, Result},
    gguf::GgufFile,
    layout, reader,
    retention::entry_names,
    safetensors_file::SafetensorsFile,
    strict::{self, Allow, StrictError},
    tensor::{self, HostTensor, TensorMap},
    tensor_file::TensorFile,
};

/// Weights on disk, opened; each tensor is read when it is asked for.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    files: Vec<Box<dyn TensorFile>>,
    config: Option<Value>,
    /// To the index in `files`; in the order of the data, so that reading by it is sequential.
    tensors: IndexMap<String, usize>,
}

impl Weights {
    /// Reads the headers of the files at `path` and checks their sizes. `path` is a folder with
    /// `model.safetensors` or `model.safetensors.index.json`, one such file under any name, or a `.gguf` file.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return match path.extension() {
                Some(ext) if ext == "json" => Self::open_index(path),
                Some(ext) if ext == "gguf" => Self::open_gguf(path),
                _ => Self::open_files(path, vec![boxed(SafetensorsFile::open(path)?)]),
            };
        }
        let (model, index) = (path.join(layout::MODEL), path.join(layout::INDEX));
        if model.exists() {
            Self::open_files(path, vec![boxed(SafetensorsFile::open(&model)?)])
        } else if index.exists() {
            Self::open_index(&index)
        } else {
            Err(Error::NoWeights {
                path: path.to_owned(),
                hint: no_weights_hint(path)?,
            })
        }
    }

    fn open_gguf(path: &Path) -> Result<Self> {
        let file = GgufFile::open(path)?;
        let config = Some(file.config().clone());
        let weights = Self::open_files(path, vec![boxed(file)])?;
        Ok(Self { config, ..weights })
    }

    fn open_index(path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let index: Index = reader::read_json(path)?;
        let malformed = |reason| Error::Malformed {
            path: path.to_owned(),
            what: "safetensors index",
            reason,
        };
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut names: Vec<_> = index.weight_map.values().collect();
        names.sort();
        names.dedup();
        let absent: Vec<_> = names.iter().filter(|n| !dir.join(n).exists()).collect();
        if !absent.is_empty() {
            return Err(malformed(format!(
                "{} of the {} files it lists are missing, among them {}",
                absent.len(),
                names.len(),
                absent[0]
            )));
        }
        let files = names
            .iter()
            .map(|name| Ok(boxed(SafetensorsFile::open(&dir.join(name))?)))
            .collect::<Result<_>>()?;
        let weights = Self::open_files(path, files)?;
        for (name, file) in &index.weight_map {
            if !weights.tensors.contains_key(name) {
                return Err(malformed(format!("tensor `{name}` is not in {file}")));
            }
        }
        Ok(weights)
    }

    fn open_files(path: &Path, files: Vec<Box<dyn TensorFile>>) -> Result<Self> {
        let mut tensors = IndexMap::new();
        for (i, file) in files.iter().enumerate() {
            for name in file.names() {
                if let Some(first) = tensors.insert(name.clone(), i) {
                    let first: &dyn TensorFile = &*files[first];
                    return Err(Error::Malformed {
                        path: path.to_owned(),
                        what: "safetensors index",
                        reason: format!(
                            "tensor `{name}` is in both {} and {}",
                            first.path().display(),
                            file.path().display()
                        ),
                    });
                }
            }
        }
        Ok(Self {
            path: path.to_owned(),
            files,
            config: None,
            tensors,
        })
    }

    /// The path given to [`Weights::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file itself says of the model, as Hugging Face's `config.json`: only GGUF files do.
    pub fn config(&self) -> Option<&Value> {
        self.config.as_ref()
    }

    /// The tokenizer that the file itself holds, as the files that Hugging Face has for it, by name: only GGUF files do.
    /// Error: one of a kind that cannot be had exactly; a sentence that names it.
    pub fn tokenizer_files(
        &self,
    ) -> std::result::Result<Option<BTreeMap<String, Vec<u8>>>, String> {
        let [file] = &self.files[..] else {
            return Ok(None);
        };
        file.tokenizer_files()
    }

    /// The tokens that begin and end a text, as a `generation_config.json` names them, if the file itself says so; null if
    /// not. Error: a sentence that names the key.
    pub fn generation_config(&self) -> std::result::Result<Value, String> {
        match &self.files[..] {
            [file] => file.generation_config(),
            _ => Ok(Value::Null),
        }
    }

    /// The names of the tensors.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a tensor, if there is one of that name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(self.info(name)?.1)
    }

    /// The number format of a tensor, if there is one of that name.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        Some(self.info(name)?.0)
    }

    /// One tensor as it is stored; of a GGUF file, dequantised.
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        self.require(name)?.read(name)
    }

    /// All tensors as they are stored.
    pub fn read_all(&self) -> Result<TensorMap> {
        self.names()
            .map(|name| Ok((name.to_owned(), self.read(name)?)))
            .collect()
    }

    /// Replaces the content of `values` by the tensor's, converted from F32, F16, BF16 or F64
    /// (rounded to nearest) without a second copy in memory, or dequantised.
    pub fn read_f32(&self, name: &str, values: &mut Vec<f32>) -> Result<()> {
        self.require(name)?.read_f32(name, values)
    }

    /// Like [`Weights::read_f32`], of these runs of elements alone, counted in row-major order: a slice of the tensor is read
    /// without the rest of it. Error: a run goes beyond the tensor.
    pub fn read_f32_runs(
        &self,
        name: &str,
        runs: impl IntoIterator<Item = Range<usize>>,
        values: &mut Vec<f32>,
    ) -> Result<()> {
        let file = self.require(name)?;
        let shape = self.shape(name).unwrap_or_default();
        let num_elements = tensor::num_elements(shape).unwrap_or(0);
        let mut beyond = None;
        let mut runs = runs.into_iter().take_while(|run| {
            let is_within = run.start <= run.end && run.end <= num_elements;
            if !is_within {
                beyond = Some(run.clone());
            }
            is_within
        });
        file.read_f32_runs(name, &mut runs, values)?;
        match beyond {
            None => Ok(()),
            Some(run) => Err(Error::Beyond {
                name: name.to_owned(),
                run,
                num_elements,
            }),
        }
    }

    /// That the tensors are just those of `expected`, in name and shape, but for what `allow`
    /// lets pass.
    pub fn check<'a>(
        &self,
        expected: impl IntoIterator<Item = (&'a str, &'a [usize])>,
        allow: &Allow<'_>,
    ) -> Result<(), StrictError> {
        let actual = self
            .names()
            .filter_map(|name| Some((name, self.shape(name)?)));
        strict::check(&self.path, expected, actual, allow)
    }

    fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        self.files[*self.tensors.get(name)?].info(name)
    }

    fn require(&self, name: &str) -> Result<&dyn TensorFile> {
        match self.tensors.get(name) {
            Some(&file) => Ok(&*self.files[file]),
            None => Err(Error::NoTensor {
                path: self.path.clone(),
                name: name.to_owned(),
                nearest: strict::nearest(name, self.names()).map(str::to_owned),
            }),
        }
    }
}

fn boxed(file: impl TensorFile + 'static) -> Box<dyn TensorFile> {
    Box::new(file)
}

/// What a folder without weights has instead.
fn no_weights_hint(dir: &Path) -> Result<String> {
    let mut names = entry_names(dir)?;
    names.sort();
    let named = |ends: &[&str]| {
        let hit = |n: &&String| ends.iter().any(|end| n.ends_with(end));
        names.iter().find(hit).cloned()
    };
    Ok(if names.iter().any(|name| name == layout::ADAPTER) {
        let file = layout::ADAPTER;
        format!("; it has {file}, an adapter, which needs the model it was trained on")
    } else if let Some(file) = named(&[".safetensors", ".safetensors.index.json"]) {
        format!(
            " under the names {} or {}; it has {file}: name that file itself",
            layout::MODEL,
            layout::INDEX
        )
    } else if let Some(file) = named(&[".bin", ".pt", ".pth", ".ckpt"]) {
        format!("; {file} is in PyTorch's pickle format, save it as safetensors first")
    } else {
        format!("; looked for {} and {}", layout::MODEL, layout::INDEX)
    })
}
