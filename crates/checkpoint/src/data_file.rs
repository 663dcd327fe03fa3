//! A safetensors file being written: its header is known before its data, so it is written front to back, and the data
//! may come from anywhere.
//!
//! Wider types come first, so that every tensor is aligned to its own width; within a width the given order is kept.
//! Source: the safetensors format (8 bytes of header length, JSON header, data).

use std::{cmp::Reverse, collections::HashMap, path::Path, vec};

use safetensors::{
    Dtype,
    tensor::{Metadata, TensorInfo},
};

use crate::{
    disk::{self, HashedFile},
    error::{Error, Result},
    manifest::FileEntry,
    source::TensorSource,
    tensor::{self, TensorMap},
};

/// Where the data of tensors comes from, in the order of the files.
pub(crate) trait Data {
    /// Writes the next `num_bytes`, those of one tensor, to `file`.
    fn write(&mut self, num_bytes: usize, file: &mut HashedFile) -> Result<()>;
}

/// What a file will hold, without the data.
#[derive(Debug)]
pub(crate) struct DataFile {
    name: String,
    tensors: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    num_bytes: usize,
}

impl DataFile {
    /// The file `name` of these tensors, which are put into the order in which it takes their data.
    pub(crate) fn new<T: TensorSource>(
        name: impl Into<String>,
        tensors: &mut [(String, T)],
    ) -> Self {
        tensors.sort_by_key(|(_, tensor)| Reverse(tensor.dtype().bitsize()));
        let entry = |(name, tensor): &(String, T)| Entry {
            name: name.clone(),
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            num_bytes: tensor.num_bytes(),
        };
        Self {
            name: name.into(),
            tensors: tensors.iter().map(entry).collect(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    pub(crate) fn num_bytes(&self) -> u64 {
        self.tensors
            .iter()
            .map(|tensor| tensor.num_bytes as u64)
            .sum()
    }

    pub(crate) fn num_elements(&self) -> usize {
        let elements = self
            .tensors
            .iter()
            .filter_map(|tensor| tensor::num_elements(&tensor.shape));
        elements.sum()
    }

    /// Writes the file into the folder `dir`.
    pub(crate) fn write(&self, dir: &Path, data: &mut dyn Data) -> Result<FileEntry> {
        let path = dir.join(&self.name);
        let header = self.header(&path)?;
        let mut file = HashedFile::create(&path)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for tensor in &self.tensors {
            data.write(tensor.num_bytes, &mut file)?;
        }
        file.finish(&self.name)
    }

    fn header(&self, path: &Path) -> Result<Vec<u8>> {
        let mut infos = Vec::with_capacity(self.tensors.len());
        let mut end = 0;
        for tensor in &self.tensors {
            let Entry {
                name,
                dtype,
                shape,
                num_bytes,
            } = tensor;
            tensor::check_size(name, *dtype, shape, *num_bytes)?;
            let start = end;
            end += num_bytes;
            let info = TensorInfo {
                dtype: *dtype,
                shape: shape.clone(),
                data_offsets: (start, end),
            };
            infos.push((name.clone(), info));
        }
        let malformed = |reason: String| Error::Malformed {
            path: path.to_owned(),
            what: "safetensors",
            reason,
        };
        // transformers refuses files that do not say which framework their layout is of.
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let metadata = Metadata::new(Some(format), infos).map_err(|e| malformed(e.to_string()))?;
        let mut header = serde_json::to_vec(&metadata).map_err(|e| malformed(e.to_string()))?;
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok(header)
    }
}

/// Tensors read on the thread that writes them, a piece at a time.
pub(crate) struct InPlace<T> {
    tensors: vec::IntoIter<(String, T)>,
    piece: Vec<u8>,
}

impl<T: TensorSource> InPlace<T> {
    /// In the order in which the files take them.
    pub(crate) fn new(tensors: Vec<(String, T)>) -> Self {
        Self {
            tensors: tensors.into_iter(),
            piece: Vec::new(),
        }
    }
}

impl<T: TensorSource> Data for InPlace<T> {
    fn write(&mut self, num_bytes: usize, file: &mut HashedFile) -> Result<()> {
        const PIECE_BYTES: usize = 4 << 20;
        let (name, tensor) = self.tensors.next().ok_or(Error::Abandoned)?;
        for start in (0..num_bytes).step_by(PIECE_BYTES) {
            self.piece.clear();
            let range = start..num_bytes.min(start + PIECE_BYTES);
            let read = tensor.read(range, &mut self.piece);
            read.map_err(|source| Error::Source {
                name: name.clone(),
                source,
            })?;
            file.write_all(&self.piece)?;
        }
        Ok(())
    }
}

/// Writes tensors to a safetensors file of their own.
pub fn write_tensors(path: &Path, tensors: &TensorMap) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut tensors: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (name.clone(), tensor))
        .collect();
    let file = DataFile::new(name, &mut tensors);
    let file = file.write(dir, &mut InPlace::new(tensors))?;
    disk::sync_files(dir, &[file])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::HostTensor;

    fn bytes(n: usize) -> TensorMap {
        let tensor = HostTensor {
            dtype: Dtype::U8,
            shape: vec![n],
            bytes: vec![7; n],
        };
        TensorMap::from([("t0".to_owned(), tensor)])
    }

    #[test]
    fn full_disk_is_recognised_when_writing() {
        // A device whose every write fails as on a full disk.
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let error = write_tensors(full, &bytes(1 << 21)).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        assert!(error.to_string().contains("/dev/full"), "{error}");
    }

    #[test]
    fn tensor_whose_bytes_do_not_fit_its_shape_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut tensors = bytes(4);
        tensors["t0"].shape = vec![5];
        let error = write_tensors(&dir.path().join("x.safetensors"), &tensors).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor `t0`: [5] of U8 does not fit 4 bytes"
        );
    }
}
