//! The bytes of tensors on their way from the thread that holds the tensors to the one that writes them.
//!
//! One run of bytes, tensor after tensor in the order of the files, cut into buffers that hold whole elements. Emptied
//! buffers come back to be filled again. When as many are on their way as the window holds, the sender waits: what fits
//! the window costs it a copy, what does not the time to write it.

use std::sync::mpsc::{self, Receiver, Sender};

use crate::{
    data_file::Data,
    disk::HashedFile,
    error::{Error, Result},
    source::TensorSource,
};

const BUFFER_BYTES: usize = 8 << 20;
/// A window of 64 MiB: a larger one would spare a step little, for the thread that writes is hardly slower than the one
/// that reads, but how much of it is full at the worst moment would depend on the disk.
const NUM_BUFFERS: usize = 8;

/// A multiple of the width of every type.
const ALIGNMENT: usize = 8;

/// The most memory that writing `num_bytes` of tensor data takes.
pub fn write_window_bytes(num_bytes: u64) -> u64 {
    num_bytes.min((BUFFER_BYTES * NUM_BUFFERS) as u64)
}

/// The two ends, for `num_bytes` in all.
pub(crate) fn channel(num_bytes: u64) -> (Outgoing, Incoming) {
    let buffer_bytes = usize::try_from(num_bytes).unwrap_or(BUFFER_BYTES);
    with_buffers(buffer_bytes.clamp(ALIGNMENT, BUFFER_BYTES), NUM_BUFFERS)
}

fn with_buffers(buffer_bytes: usize, max_buffers: usize) -> (Outgoing, Incoming) {
    let (to_write, full) = mpsc::channel();
    let (to_fill, empty) = mpsc::channel();
    let outgoing = Outgoing {
        full: to_write,
        empty,
        current: Vec::new(),
        buffer_bytes,
        num_buffers: 0,
        max_buffers,
    };
    let incoming = Incoming {
        full,
        empty: to_fill,
        current: Vec::new(),
        position: 0,
    };
    (outgoing, incoming)
}

/// The end of the thread that holds the tensors.
pub(crate) struct Outgoing {
    full: Sender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    current: Vec<u8>,
    buffer_bytes: usize,
    /// Made so far.
    num_buffers: usize,
    max_buffers: usize,
}

/// The thread at the other end has failed: why is for it to say.
struct NobodyWrites;

impl Outgoing {
    /// Sends all of `tensors`, each of which is let go when it is on its way. Error: one could not be read; the other end
    /// then fails too.
    pub(crate) fn send(
        mut self,
        tensors: impl IntoIterator<Item = (String, impl TensorSource)>,
    ) -> Result<()> {
        for (name, tensor) in tensors {
            let num_bytes = tensor.num_bytes();
            let mut start = 0;
            while start < num_bytes {
                let room = self.room();
                let len = match num_bytes - start {
                    left if left <= room => left,
                    _ => room / ALIGNMENT * ALIGNMENT,
                };
                if len > 0 {
                    let range = start..start + len;
                    let read = tensor.read(range, &mut self.current);
                    read.map_err(|source| Error::Source {
                        name: name.clone(),
                        source,
                    })?;
                    start += len;
                } else if let Err(NobodyWrites) = self.flush() {
                    return Ok(());
                }
            }
        }
        let _ = self.flush();
        Ok(())
    }

    fn room(&self) -> usize {
        match self.num_buffers {
            0 => 0,
            _ => self.buffer_bytes - self.current.len(),
        }
    }

    /// Sends the buffer that was being filled, and gets another, which may take waiting for one.
    fn flush(&mut self) -> Result<(), NobodyWrites> {
        if !self.current.is_empty() {
            let full = std::mem::take(&mut self.current);
            self.full.send(full).map_err(|_| NobodyWrites)?;
        }
        self.current = match self.empty.try_recv() {
            Ok(buffer) => buffer,
            Err(_) if self.num_buffers < self.max_buffers => {
                self.num_buffers += 1;
                Vec::with_capacity(self.buffer_bytes)
            }
            Err(_) => self.empty.recv().map_err(|_| NobodyWrites)?,
        };
        Ok(())
    }
}

/// The end of the thread that writes.
pub(crate) struct Incoming {
    full: Receiver<Vec<u8>>,
    empty: Sender<Vec<u8>>,
    current: Vec<u8>,
    /// In `current`.
    position: usize,
}

impl Data for Incoming {
    fn write(&mut self, num_bytes: usize, file: &mut HashedFile) -> Result<()> {
        let mut left = num_bytes;
        while left > 0 {
            if self.position == self.current.len() {
                self.current = self.full.recv().map_err(|_| Error::Abandoned)?;
                self.position = 0;
            }
            let end = self.current.len().min(self.position + left);
            file.write_all(&self.current[self.position..end])?;
            left -= end - self.position;
            self.position = end;
            if end == self.current.len() {
                let mut emptied = std::mem::take(&mut self.current);
                emptied.clear();
                self.position = 0;
                // The sender may have sent its last.
                let _ = self.empty.send(emptied);
            }
        }
        Ok(())
    }
}

impl Incoming {
    /// Takes all that comes, for nothing.
    pub(crate) fn discard(self) {
        while let Ok(mut buffer) = self.full.recv() {
            buffer.clear();
            let _ = self.empty.send(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        ops::Range,
        path::Path,
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        thread,
    };

    use safetensors::Dtype;

    use super::*;
    use crate::{error::SourceError, tensor::HostTensor};

    /// A tensor of bytes, that counts how many were read.
    struct Counted<'a>(HostTensor, &'a AtomicUsize);

    impl TensorSource for Counted<'_> {
        fn dtype(&self) -> Dtype {
            self.0.dtype
        }

        fn shape(&self) -> &[usize] {
            &self.0.shape
        }

        fn read(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SourceError> {
            self.1.fetch_add(range.len(), SeqCst);
            self.0.read(range, out)
        }
    }

    fn bytes(len: usize) -> HostTensor {
        HostTensor {
            dtype: Dtype::U8,
            shape: vec![len],
            bytes: (0..len).map(|i| i as u8).collect(),
        }
    }

    /// What arrives of tensors of these sizes.
    fn received(sizes: &[usize], incoming: &mut Incoming, dir: &Path) -> Vec<u8> {
        let path = dir.join("received");
        let mut file = HashedFile::create(&path).unwrap();
        for size in sizes {
            incoming.write(*size, &mut file).unwrap();
        }
        file.finish("received").unwrap();
        std::fs::read(path).unwrap()
    }

    #[test]
    fn tensors_of_any_size_arrive_as_they_were_sent() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = [3, 0, 64, 17, 1, 40, 8, 5];
        let sent: Vec<u8> = sizes.iter().flat_map(|&size| bytes(size).bytes).collect();
        for (buffer_bytes, max_buffers) in [(8, 1), (24, 2), (1 << 10, 16)] {
            let (outgoing, mut incoming) = with_buffers(buffer_bytes, max_buffers);
            let tensors = sizes.map(|size| (size.to_string(), bytes(size)));
            let sender = thread::spawn(move || outgoing.send(tensors));
            assert_eq!(received(&sizes, &mut incoming, dir.path()), sent);
            sender.join().unwrap().unwrap();
        }
    }

    #[test]
    fn no_more_is_read_than_the_window_holds() {
        let dir = tempfile::tempdir().unwrap();
        let (outgoing, mut incoming) = with_buffers(16, 4);
        let num_read = AtomicUsize::new(0);
        thread::scope(|scope| {
            let tensor = Counted(bytes(1000), &num_read);
            let sender = scope.spawn(|| outgoing.send([("x".to_owned(), tensor)]));
            while num_read.load(SeqCst) < 64 {
                thread::yield_now();
            }
            thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(num_read.load(SeqCst), 64, "it waits");
            received(&[1000], &mut incoming, dir.path());
            sender.join().unwrap().unwrap();
        });
        assert_eq!(num_read.load(SeqCst), 1000);
    }

    #[test]
    fn sending_ends_when_nobody_writes_any_more() {
        let (outgoing, incoming) = with_buffers(8, 1);
        drop(incoming);
        outgoing.send([("x".to_owned(), bytes(1000))]).unwrap();
    }

    #[test]
    fn data_that_stops_short_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (outgoing, mut incoming) = with_buffers(1 << 10, 16);
        outgoing.send([("x".to_owned(), bytes(10))]).unwrap();
        let mut file = HashedFile::create(&dir.path().join("short")).unwrap();
        let error = incoming.write(11, &mut file).unwrap_err();
        assert!(matches!(error, Error::Abandoned), "{error}");
    }
}
