//! Progress on standard output: a bar on a terminal, a line now and then elsewhere.
//!
//! All of it goes to one stream, so that `| tee` and `>` see what a terminal would; as JSON that stream has rows alone, and
//! the rest is on standard error. Errors of a stream are ignored: a closed pipe must not end a run.

use std::{
    fmt::Write as _,
    io::{self, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    config::Progress,
    environment::rss_bytes,
    record::Record,
    sample::Sample,
    sink::{End, RunInfo, Sink, SinkResult},
    terminal, text,
    transcript::{self, Stream},
    trend::Trend,
};

/// `kwargs` of `console.Console`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsoleConfig {
    /// How progress is shown.
    pub progress: Progress,
}

/// `console.Console`. As lines, one step in `log_interval` is shown, and the first and the last.
pub struct Console {
    progress: Progress,
    show: Show,
    /// The step this process began after, and when it did.
    first_step: u64,
    start: Instant,
    num_steps: Option<u64>,
    log_interval: u64,
    loss: Trend,
}

type Out = Box<dyn Write + Send>;

enum Show {
    Bar(ProgressBar),
    Lines(Out),
    Messages(Out),
    /// Rows, and messages apart from them.
    Json(Out, Out),
    Nothing,
}

impl Console {
    /// A console that shows progress so.
    pub fn new(progress: Progress) -> Self {
        let out: Out = Box::new(io::stdout());
        let show = match progress {
            Progress::Auto | Progress::Lines => Show::Lines(out),
            Progress::None => Show::Messages(out),
            Progress::Json => Show::Json(out, Box::new(io::stderr())),
            Progress::Quiet => Show::Nothing,
        };
        Self {
            progress,
            ..Self::with(show, 0, None, 0)
        }
    }

    fn with(show: Show, first_step: u64, num_steps: Option<u64>, log_interval: u64) -> Self {
        Self {
            progress: Progress::Lines,
            show,
            first_step,
            start: Instant::now(),
            num_steps,
            log_interval,
            loss: Trend::default(),
        }
    }

    fn is_shown(&self, step: u64) -> bool {
        step == self.first_step + 1
            || Some(step) == self.num_steps
            || (self.log_interval > 0 && step.is_multiple_of(self.log_interval))
    }

    /// At the mean pace so far, everything included.
    fn time_left(&self, step: u64) -> Option<Duration> {
        let done = step.checked_sub(self.first_step).filter(|&n| n > 0)?;
        let left = self.num_steps?.checked_sub(step).filter(|&n| n > 0)?;
        let seconds = self.start.elapsed().as_secs_f64() / done as f64 * left as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// `step=10/500 loss=2.500 ...`, with the names of `metrics.jsonl` and no blank in a value, so that `grep` and `cut`
    /// find them.
    fn line(&self, record: &Record) -> String {
        let step = record.step();
        let mut line = match self.num_steps {
            Some(all) => format!("step={step}/{all}"),
            None => format!("step={step}"),
        };
        let mut field = |name: &str, value: f64| {
            let _ = write!(line, " {name}={}", text::value(value));
        };
        match record {
            Record::Step(r) => {
                field("loss", r.loss.into());
                field("lr", r.lr);
                field("grad_norm", r.grad_norm.into());
            }
            Record::Val(r) => field("val_loss", r.val_loss.into()),
        }
        for (name, scalar) in record.scalars() {
            field(name, scalar.to_f64());
        }
        if let Record::Step(r) = record {
            let speed = r.tokens_per_second;
            let _ = write!(line, " tokens_per_second={}", text::value(speed.round()));
            if let Some(left) = self.time_left(r.step) {
                let _ = write!(line, " eta={}", text::duration(left).replace(' ', ""));
            }
        }
        line
    }

    /// What stands behind the bar: the most important first, since a narrow terminal cuts off the rest.
    fn status(&self, record: &Record) -> String {
        let Record::Step(r) = record else {
            return String::new();
        };
        let mut status = format!(
            "loss {}{}  lr {}  |g| {}  {} tok/s",
            text::value(r.loss.into()),
            self.loss.arrow(),
            text::value(r.lr),
            text::value(r.grad_norm.into()),
            text::count(r.tokens_per_second),
        );
        if let Some(mfu) = record.scalars().get("mfu") {
            let _ = write!(status, "  {:.0} % MFU", 100.0 * mfu.to_f64());
        }
        if let Some(left) = self.time_left(r.step) {
            let _ = write!(status, "  ETA {}", text::duration(left));
        }
        if let Some(bytes) = rss_bytes() {
            let _ = write!(status, "  {}B", text::count(bytes as f64));
        }
        status
    }
}

impl Sink for Console {
    fn start(&mut self, run: &RunInfo) -> SinkResult {
        self.first_step = run.step;
        self.num_steps = run.num_steps;
        self.log_interval = run.log_interval;
        self.start = Instant::now();
        if self.progress == Progress::Auto && terminal::is_capable() {
            let target = ProgressDrawTarget::stdout();
            self.show = Show::Bar(bar(target, run.step, run.num_steps));
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, _position: u64) -> SinkResult {
        if let Record::Step(r) = record {
            self.loss.add(r.loss.into());
        }
        let line = match record {
            Record::Step(r) if !self.is_shown(r.step) => None,
            _ => Some(self.line(record)),
        };
        match (&mut self.show, record, line) {
            (Show::Messages(_) | Show::Nothing, _, _) | (Show::Lines(_), _, None) => {}
            (Show::Json(out, _), _, line) => {
                let row = record.to_line()?;
                let _ = out.write_all(row.as_bytes()).and_then(|()| out.flush());
                if let Some(line) = line {
                    transcript::keep(Stream::Out, &format!("{line}\n"));
                }
            }
            (Show::Bar(_), Record::Step(r), line) => {
                if let Some(line) = line {
                    transcript::keep(Stream::Out, &format!("{line}\n"));
                }
                let status = self.status(record);
                if let Show::Bar(bar) = &self.show {
                    bar.set_message(status);
                    bar.set_position(r.step);
                }
            }
            (Show::Lines(_) | Show::Bar(_), _, Some(line)) => self.message(&line)?,
            (Show::Bar(_), Record::Val(_), None) => {}
        }
        Ok(())
    }

    fn sample(&mut self, sample: &Sample) -> SinkResult {
        let Sample {
            prompt,
            continuation,
            ..
        } = sample;
        let plain = format!("> {prompt} ||{continuation}");
        if let Show::Bar(bar) = &self.show {
            transcript::keep(Stream::Out, &format!("{plain}\n"));
            let title = format!("sample, step {}", sample.step);
            let text = format!("{prompt} ||{continuation}");
            bar.println(text::boxed(&title, &text, terminal::columns()));
            return Ok(());
        }
        self.message(&plain)
    }

    fn message(&mut self, text: &str) -> SinkResult {
        let stream = match self.show {
            Show::Json(..) => Stream::Err,
            Show::Nothing if text.starts_with("warning: ") => Stream::Err,
            _ => Stream::Out,
        };
        transcript::keep(stream, &format!("{text}\n"));
        match &mut self.show {
            Show::Bar(bar) => bar.println(text),
            Show::Lines(out) | Show::Messages(out) | Show::Json(_, out) => {
                let _ = writeln!(out, "{text}").and_then(|()| out.flush());
            }
            // What is wrong is said all the same.
            Show::Nothing if text.starts_with("warning: ") => {
                let _ = writeln!(io::stderr(), "{text}");
            }
            Show::Nothing => {}
        }
        Ok(())
    }

    fn closing(&mut self, end: &End) -> SinkResult {
        if let Show::Bar(bar) = &self.show {
            // Left on the screen as it is; after an error, it would be in the way of what is said of it.
            if let End::Finished | End::Stopped = end {
                bar.abandon();
            }
            // Drawn once more, it would overwrite what has been printed since.
            self.show = Show::Messages(Box::new(io::stdout()));
        }
        Ok(())
    }
}

fn bar(target: ProgressDrawTarget, first_step: u64, num_steps: Option<u64>) -> ProgressBar {
    let has_color = !terminal::refuses_colours();
    let style = ProgressStyle::with_template(template(has_color, num_steps.is_some()))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    let bar = ProgressBar::with_draw_target(num_steps, target).with_style(style);
    bar.set_position(first_step);
    bar
}

fn template(color: bool, has_length: bool) -> &'static str {
    match (has_length, color) {
        (true, true) => "step {pos}/{len} [{bar:12.cyan}] {wide_msg}",
        (true, false) => "step {pos}/{len} [{bar:12}] {wide_msg}",
        (false, _) => "step {pos}  {wide_msg}",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::InMemoryTerm;

    use super::*;
    use crate::record::{StepRecord, ValRecord};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(data)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn step(step: u64) -> Record {
        Record::Step(StepRecord {
            step,
            loss: 5.25,
            lr: 4.2e-5,
            grad_norm: 1.5,
            tokens_per_second: 12_345.0,
            ..StepRecord::default()
        })
    }

    fn val(step: u64) -> Record {
        Record::Val(ValRecord {
            step,
            val_loss: 4.5,
            ..ValRecord::default()
        })
    }

    #[test]
    fn lines_show_the_first_the_last_and_one_step_in_log_interval() {
        let out = Shared::default();
        let mut console = Console::with(Show::Lines(Box::new(out.clone())), 3, Some(25), 10);
        for i in 4..=25 {
            console.record(&step(i), 0).unwrap();
        }
        let text = out.text();
        let steps: Vec<_> = text
            .lines()
            .map(|l| l.split(" loss").next().unwrap())
            .collect();
        assert_eq!(
            steps,
            ["step=4/25", "step=10/25", "step=20/25", "step=25/25"]
        );
    }

    #[test]
    fn line_has_every_number_and_no_control_characters() {
        let out = Shared::default();
        let mut console = Console::with(Show::Lines(Box::new(out.clone())), 0, Some(25), 10);
        console.record(&step(25), 0).unwrap();
        let mut scored = val(25);
        if let Record::Val(r) = &mut scored {
            r.scalars.insert("accuracy".into(), 0.5f32.into());
        }
        console.record(&scored, 0).unwrap();
        console.message("done").unwrap();
        assert_eq!(
            out.text(),
            "step=25/25 loss=5.250 lr=4.2e-5 grad_norm=1.500 tokens_per_second=12345\n\
             step=25/25 val_loss=4.500 accuracy=0.5000\n\
             done\n"
        );
    }

    #[test]
    fn a_run_of_unknown_length_shows_its_steps_and_no_end() {
        let out = Shared::default();
        let mut console = Console::with(Show::Lines(Box::new(out.clone())), 0, None, 10);
        console.record(&step(10), 0).unwrap();
        assert_eq!(
            out.text(),
            "step=10 loss=5.250 lr=4.2e-5 grad_norm=1.500 tokens_per_second=12345\n"
        );
    }

    #[test]
    fn time_left_counts_from_where_the_run_was_resumed() {
        let mut console = Console::with(Show::Lines(Box::new(io::sink())), 90, Some(100), 1);
        console.start = Instant::now() - Duration::from_secs(10);
        let left = console.time_left(92).unwrap().as_secs_f64();
        assert!((left - 40.0).abs() < 1.0, "{left}");
        assert!(console.time_left(90).is_none());
    }

    #[test]
    fn bar_shows_the_step_and_keeps_messages_above() {
        let term = InMemoryTerm::new(10, 80);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let mut console = Console::with(Show::Bar(bar(target, 0, Some(50))), 0, Some(50), 10);
        console.record(&step(25), 0).unwrap();
        console.message("checkpoint saved").unwrap();
        console.record(&val(25), 0).unwrap();
        console.closing(&End::Finished).unwrap();
        let screen = term.contents();
        let lines: Vec<_> = screen.lines().collect();
        assert_eq!(
            lines[..2],
            ["checkpoint saved", "step=25/50 val_loss=4.500"]
        );
        assert!(lines[2].starts_with("step 25/50 [="), "{screen}");
        assert!(
            lines[2].contains("loss 5.250  lr 4.2e-5  |g| 1.500  12.3k tok"),
            "{screen}"
        );
        assert!(lines[2].len() <= 80 && lines.len() == 3, "{screen}");
    }

    #[test]
    fn bar_stays_on_one_line_of_a_narrow_terminal() {
        let term = InMemoryTerm::new(10, 40);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let mut console = Console::with(Show::Bar(bar(target, 0, Some(500))), 0, Some(500), 10);
        for i in 1..=500 {
            console.record(&step(i), 0).unwrap();
        }
        console.closing(&End::Finished).unwrap();
        let screen = term.contents();
        assert_eq!(screen.lines().count(), 1, "{screen}");
        assert_eq!(screen.lines().count(), 1, "{screen}");
        assert!(
            screen.starts_with("step 500/500 [") && screen.contains("loss 5.25"),
            "{screen}"
        );
    }

    #[test]
    fn without_progress_only_messages_are_shown() {
        let out = Shared::default();
        let mut console = Console::with(Show::Messages(Box::new(out.clone())), 0, Some(25), 1);
        console.record(&step(1), 0).unwrap();
        console.record(&val(1), 0).unwrap();
        console.message("hello").unwrap();
        assert_eq!(out.text(), "hello\n");
    }

    #[test]
    fn all_templates_are_valid_and_one_has_no_colour() {
        for (color, has_length) in [(true, true), (true, false), (false, true), (false, false)] {
            ProgressStyle::with_template(template(color, has_length)).unwrap();
        }
        assert!(!template(false, true).contains("cyan"));
    }

    #[test]
    fn as_json_the_rows_are_alone_on_their_stream() {
        let (rows, messages) = (Shared::default(), Shared::default());
        let show = Show::Json(Box::new(rows.clone()), Box::new(messages.clone()));
        let mut console = Console::with(show, 0, Some(25), 10);
        console.record(&step(1), 0).unwrap();
        console.message("checkpoint saved").unwrap();
        console.record(&val(1), 0).unwrap();
        let text = rows.text();
        let rows: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            (&rows[0]["loss"], &rows[1]["val_loss"]),
            (&5.25.into(), &4.5.into())
        );
        assert_eq!(messages.text(), "checkpoint saved\n");
    }

    #[test]
    fn a_sample_is_boxed_on_a_terminal_and_one_line_elsewhere() {
        let sample = Sample {
            step: 7,
            prompt: "Once".into(),
            continuation: " upon".into(),
        };
        let out = Shared::default();
        let mut console = Console::with(Show::Lines(Box::new(out.clone())), 0, None, 1);
        console.sample(&sample).unwrap();
        assert_eq!(out.text(), "> Once || upon\n");
        let term = InMemoryTerm::new(10, 80);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let mut console = Console::with(Show::Bar(bar(target, 0, None)), 0, None, 1);
        console.sample(&sample).unwrap();
        let screen = term.contents();
        let lines: Vec<_> = screen.lines().map(str::trim_end).collect();
        assert!(
            lines[0].starts_with("\u{256d}\u{2500} sample, step 7 \u{2500}"),
            "{screen}"
        );
        assert!(lines[1].starts_with("\u{2502} Once || upon "), "{screen}");
        assert!(lines[2].starts_with("\u{2570}\u{2500}"), "{screen}");
    }
}
