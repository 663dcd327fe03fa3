//! Log-probabilities of the reference, computed once and kept on disk.
//!
//! A cache is a folder under `reference` in the user's cache folder, named by a hash of all that they depend on besides a
//! row's own tokens: the weights and `config.json` of the model, the number format and the kernels. In it are files of up to
//! [`ROWS_PER_FILE`] rows, or a few more: for each its [`RowKey`] and the f32, then a hash of all of that. A file is written
//! aside and renamed, and named by its hash, so it is whole or not there, a run that is killed goes on after its last file,
//! and two at once write the same. One that is damaged counts as not there. Rows are known by their tokens: other data, another
//! order or another template takes what it has in common.

use std::collections::hash_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};

use tt_collators::Pipeline;
use tt_collators::{Batch, RowKey, RowValues};
use tt_models::Model;
use tt_nn::{Forward, ParamTree};
use tt_tensor::{Device, Precision};
use tt_train::{DeviceBatch, Error, Result};

use super::log_probs::Answers;

/// What the batches have of it.
pub(super) const FIELD: &str = "reference_log_prob";

const FORMAT: &str = "1";
const ROWS_PER_FILE: usize = 4096;
const BYTES_PER_ROW: usize = 16 + 4;
const HASH_BYTES: usize = 32;

/// What they are computed with.
pub(super) struct Pass<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) params: &'a ParamTree,
    /// Of the parameters.
    pub(super) fingerprint: &'a str,
    pub(super) precision: Precision,
    pub(super) device: Device,
}

/// Those of all rows of `data`, what was missing computed and written; and what to say of it.
pub(super) fn complete(pass: &Pass<'_>, data: &Pipeline) -> Result<(RowValues, String)> {
    let Some(root) = tt_data::cache_folder() else {
        return Err(Error::Config {
            key: "trainer.kwargs.reference",
            why: "precomputed log-probabilities are kept in the user's cache folder, and there is none: set XDG_CACHE_HOME or HOME".to_owned(),
        });
    };
    let folder = root.join("reference").join(pass.key());
    let mut cache = Cache::open(folder)?;
    for batch in data.validation() {
        cache.add(pass, batch)?;
    }
    let mut loader = data.each_once()?;
    while let Some(batch) = loader.next_batch()? {
        cache.add(pass, &batch)?;
        loader.recycle(batch);
    }
    cache.write()?;
    let said = format!(
        "log-probabilities of the reference: {} answers, {} of them computed now; {}",
        cache.used,
        cache.made,
        cache.folder.display()
    );
    Ok((cache.values, said))
}

impl Pass<'_> {
    fn key(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let config = self.model.hf_config().to_string();
        let how = format!("{:?} {}", self.precision, self.device.instruction_set());
        for part in [
            FORMAT,
            env!("CARGO_PKG_VERSION"),
            self.fingerprint,
            &config,
            &how,
        ] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex()[..32].to_owned()
    }

    /// Of each row.
    fn log_probs(&self, batch: &Batch) -> Result<Vec<f32>> {
        let fwd = Forward::inference(self.params).with_precision(self.precision);
        let batch = DeviceBatch::upload(batch, self.device)?;
        let answers = Answers::of(&fwd, self.model, &batch)?;
        Ok(answers.log_probs.to_vec()?)
    }
}

struct Cache {
    folder: PathBuf,
    values: RowValues,
    /// Not yet on disk.
    unwritten: Vec<(RowKey, f32)>,
    /// Rows that were asked for, and that were computed.
    used: usize,
    made: usize,
}

impl Cache {
    /// Reads what there is.
    fn open(folder: PathBuf) -> Result<Self> {
        tt_disk::create_dir(&folder)?;
        let mut values = RowValues::new();
        let entries = fs::read_dir(&folder).map_err(tt_disk::Error::io("read folder", &folder))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        for file in files {
            for (key, value) in read(&file).unwrap_or_default() {
                values.entry(key).or_insert(value);
            }
        }
        Ok(Self {
            folder,
            values,
            unwritten: Vec::new(),
            used: 0,
            made: 0,
        })
    }

    /// Computes the rows of a batch unless all are there.
    fn add(&mut self, pass: &Pass<'_>, batch: &Batch) -> Result<()> {
        let keys = RowKey::of_batch(batch);
        let known = keys.iter().flatten();
        self.used += known.clone().count();
        if known.into_iter().all(|key| self.values.contains_key(key)) {
            return Ok(());
        }
        for (key, value) in keys.into_iter().zip(pass.log_probs(batch)?) {
            let Some(key) = key else {
                continue;
            };
            if let Entry::Vacant(vacant) = self.values.entry(key) {
                vacant.insert(value);
                self.unwritten.push((key, value));
                self.made += 1;
            }
        }
        if self.unwritten.len() >= ROWS_PER_FILE {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if self.unwritten.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(self.unwritten.len() * BYTES_PER_ROW + HASH_BYTES);
        for (key, value) in self.unwritten.drain(..) {
            bytes.extend(key.0);
            bytes.extend(value.to_le_bytes());
        }
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        let name = format!("{}.logps", &hash.to_hex()[..16]);
        tt_disk::write_file(&self.folder.join(name), &bytes)?;
        Ok(())
    }
}

/// `None` of what is no file of these, or not a whole one.
fn read(path: &Path) -> Option<Vec<(RowKey, f32)>> {
    if path.extension()? != "logps" {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let (rows, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH_BYTES)?)?;
    if blake3::hash(rows).as_bytes() != hash {
        return None;
    }
    let rows = rows.chunks_exact(BYTES_PER_ROW).map(|row| {
        let (key, value) = row.split_at(16);
        let key = RowKey(key.try_into().expect("16 bytes"));
        (key, f32::from_le_bytes(value.try_into().expect("4 bytes")))
    });
    Some(rows.collect())
}
