//! What a process prints, kept in a file as well: both streams, in the order in which they were written.
//!
//! Whoever prints also calls [`keep`]. A thread writes the file, so that a disk that is slow, full or gone can neither
//! stop a run nor make it wait: what the thread cannot take is left out, and said so in its place.
//!
//! The file is for people and says nothing of streams; who asks [`is_error`] learns which of its bytes went to standard
//! error.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        mpsc::{self, Receiver, SyncSender, TrySendError},
    },
    thread,
    time::Duration,
};

/// The file in a run folder.
pub const CONSOLE_LOG: &str = "console.log";

/// What is held until there is a file. Commands without one print more, and keep the beginning for nothing.
const MOST_WAITING_BYTES: usize = 1 << 16;

/// Texts on their way to the thread. A run prints a few a second.
const MOST_QUEUED: usize = 1024;

/// How long the end of a process waits for the last of them.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where the file is, and where this process's part of it begins.
static PLACE: OnceLock<(PathBuf, u64)> = OnceLock::new();

static TRANSCRIPT: Mutex<Transcript> = Mutex::new(Transcript::Waiting(Vec::new()));

/// What of the file went to standard error, in order.
static ERRORS: Mutex<Vec<Range<u64>>> = Mutex::new(Vec::new());

/// Where a text was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

enum Transcript {
    /// Printed before the file was known.
    Waiting(Vec<(Stream, String)>),
    Writing(Writing),
    /// Ended, or the file cannot be written.
    Off,
}

struct Writing {
    texts: SyncSender<Text>,
    /// Disconnected once all is written.
    done: Receiver<()>,
    num_lost: u64,
}

/// For the thread that writes.
enum Text {
    Printed(Stream, String),
    /// Whoever waits for what came before.
    Awaited(mpsc::Sender<()>),
}

/// Keeps a text that was printed, line breaks included.
pub fn keep(stream: Stream, text: &str) {
    let mut transcript = transcript();
    match &mut *transcript {
        Transcript::Waiting(waiting) => {
            let bytes: usize = waiting.iter().map(|(_, text)| text.len()).sum();
            if bytes + text.len() <= MOST_WAITING_BYTES {
                waiting.push((stream, text.to_owned()));
            }
        }
        Transcript::Writing(writing) => {
            if !writing.send(stream, text) {
                *transcript = Transcript::Off;
            }
        }
        Transcript::Off => {}
    }
}

/// From here on, what is printed is appended to `file`: first `header`, then what was printed before.
pub fn begin(file: &Path, header: &str) -> io::Result<()> {
    let mut transcript = transcript();
    let Transcript::Waiting(waiting) = &*transcript else {
        return Ok(());
    };
    let begun = OpenOptions::new().create(true).append(true).open(file);
    if let Ok(length) = begun
        .as_ref()
        .map(|it| it.metadata().map_or(0, |it| it.len()))
    {
        let _ = PLACE.set((file.to_owned(), length));
    }
    let header = (Stream::Out, format!("{header}\n"));
    let first = std::iter::once(header).chain(waiting.iter().cloned());
    let begun = begun.and_then(|file| Writing::start(file, first.collect()));
    match begun {
        Ok(writing) => *transcript = Transcript::Writing(writing),
        Err(error) => {
            *transcript = Transcript::Off;
            return Err(error);
        }
    }
    drop(transcript);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        keep(Stream::Err, &format!("{panic}\n"));
        before(panic);
    }));
    Ok(())
}

/// The file and where this process's part of it begins, once it has begun.
pub fn place() -> Option<(PathBuf, u64)> {
    PLACE.get().cloned()
}

/// Whether the byte at `position` of the file was printed to standard error by this process.
pub fn is_error(position: u64) -> bool {
    let errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    let next = errors.partition_point(|range| range.end <= position);
    errors
        .get(next)
        .is_some_and(|range| range.contains(&position))
}

/// Waits a little until what was kept is in the file.
pub fn settle() {
    let (sender, done) = mpsc::channel();
    if let Transcript::Writing(writing) = &*transcript() {
        let _ = writing.texts.try_send(Text::Awaited(sender));
    } else {
        return;
    }
    let _ = done.recv_timeout(PATIENCE); // an error tells that nobody writes, or that it takes too long
}

/// Waits a little for what is still to be written. Later texts are not kept.
pub fn end() {
    let ended = std::mem::replace(&mut *transcript(), Transcript::Off);
    if let Transcript::Writing(Writing { texts, done, .. }) = ended {
        drop(texts);
        let _ = done.recv_timeout(PATIENCE); // an error tells that all is done, or that it takes too long
    }
}

/// Appends to the transcript of a process that has ended, if it can be done.
pub fn append(file: &Path, text: &str) {
    let file = OpenOptions::new().append(true).open(file);
    let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
}

fn transcript() -> MutexGuard<'static, Transcript> {
    TRANSCRIPT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note_error(range: Range<u64>) {
    let mut errors = ERRORS.lock().unwrap_or_else(PoisonError::into_inner);
    match errors.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => errors.push(range),
    }
}

impl Writing {
    fn start(mut file: File, first: Vec<(Stream, String)>) -> io::Result<Self> {
        let (texts, incoming) = mpsc::sync_channel::<Text>(MOST_QUEUED);
        let mut position = file.metadata()?.len();
        let (all_written, done) = mpsc::channel();
        thread::Builder::new()
            .name("console log".into())
            .spawn(move || {
                let _all_written: mpsc::Sender<()> = all_written;
                let first = first
                    .into_iter()
                    .map(|(stream, text)| Text::Printed(stream, text));
                for text in first.chain(incoming) {
                    let (stream, text) = match text {
                        Text::Printed(stream, text) => (stream, text),
                        Text::Awaited(sender) => {
                            let _ = sender.send(());
                            continue;
                        }
                    };
                    let start = position;
                    position += text.len() as u64;
                    if stream == Stream::Err {
                        // Before it is there to be read.
                        note_error(start..position);
                    }
                    if file.write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            texts,
            done,
            num_lost: 0,
        })
    }

    /// Whether there is still somebody to write.
    fn send(&mut self, stream: Stream, text: &str) -> bool {
        let text = match self.num_lost {
            0 => text.to_owned(),
            lost => format!(
                "[{lost} texts are missing here: they could not be written in time]\n{text}"
            ),
        };
        match self.texts.try_send(Text::Printed(stream, text)) {
            Ok(()) => self.num_lost = 0,
            Err(TrySendError::Full(_)) => self.num_lost += 1,
            Err(TrySendError::Disconnected(_)) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn texts_are_appended_in_their_order_and_errors_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(CONSOLE_LOG);
        fs::write(&path, "before\n").unwrap();
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let mut writing = Writing::start(file, vec![(Stream::Out, "a\n".to_owned())]).unwrap();
        assert!(writing.send(Stream::Err, "b\n"));
        assert!(writing.send(Stream::Out, "c\n"));
        drop(writing.texts);
        let _ = writing.done.recv();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, "before\na\nb\nc\n");
        let errors = (0..text.len()).filter(|&at| is_error(at as u64));
        assert_eq!(errors.collect::<Vec<_>>(), [9, 10]);
    }

    #[test]
    fn a_file_that_takes_nothing_makes_nobody_wait() {
        let (texts, incoming) = mpsc::sync_channel(2);
        let (_sender, done) = mpsc::channel();
        let mut writing = Writing {
            texts,
            done,
            num_lost: 0,
        };
        assert!((0..5).all(|_| writing.send(Stream::Out, "x\n")));
        assert_eq!(writing.num_lost, 3);
        incoming.recv().unwrap();
        assert!(writing.send(Stream::Out, "y\n"));
        let Some(Text::Printed(_, last)) = incoming.iter().nth(1) else {
            panic!("a text")
        };
        assert!(last.starts_with("[3 texts are missing here") && last.ends_with("y\n"));
        drop(incoming);
        assert!(!writing.send(Stream::Out, "z\n"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_ends_the_transcript_alone() {
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut writing = Writing::start(file, vec![(Stream::Out, "a\n".to_owned())]).unwrap();
        let _ = writing.done.recv();
        assert!(!writing.send(Stream::Out, "b\n"));
    }
}
