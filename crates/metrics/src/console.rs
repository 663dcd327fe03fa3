//! Progress on standard output: a bar on a terminal, a line now and then elsewhere.
//!
//! All of it goes to one stream, so that `| tee` and `>` see what a terminal would. Errors of
//! that stream are ignored: a closed pipe must not end a run.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    config::Progress,
    record::Record,
    sink::{End, RunInfo, Sink, SinkResult},
    terminal, text, transcript,
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
}

enum Show {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
    Messages(Box<dyn Write + Send>),
}

impl Console {
    /// A console that shows progress so.
    pub fn new(progress: Progress) -> Self {
        let out = Box::new(io::stdout());
        let show = match progress {
            Progress::Auto | Progress::Lines => Show::Lines(out),
            Progress::None => Show::Messages(out),
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

    /// `  ETA 5s`, or nothing if there is none left or it is not known.
    fn eta(&self, step: u64) -> String {
        match self.time_left(step) {
            Some(left) => format!("  ETA {}", text::duration(left)),
            None => String::new(),
        }
    }

    fn line(&self, record: &Record) -> String {
        let step = record.step();
        let mut line = match self.num_steps {
            Some(all) => format!("step {step:>width$}/{all}", width = all.to_string().len()),
            None => format!("step {step}"),
        };
        let mut field = |name: &str, value: f64| {
            line.push_str(&format!("  {name} {}", text::value(value)));
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
            line.push_str(&format!("  {} tok/s", text::count(r.tokens_per_second)));
            line.push_str(&self.eta(r.step));
        }
        line
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
        match (&self.show, record) {
            (Show::Messages(_), _) => {}
            (Show::Bar(bar), Record::Step(r)) => {
                if self.is_shown(r.step) {
                    transcript::keep(&format!("{}\n", self.line(record)));
                }
                bar.set_message(format!(
                    "loss {}  lr {}  {} tok/s{}",
                    text::value(r.loss.into()),
                    text::value(r.lr),
                    text::count(r.tokens_per_second),
                    self.eta(r.step),
                ));
                bar.set_position(r.step);
            }
            (Show::Lines(_), Record::Step(r)) if !self.is_shown(r.step) => {}
            _ => {
                let line = self.line(record);
                self.message(&line)?;
            }
        }
        Ok(())
    }

    fn message(&mut self, text: &str) -> SinkResult {
        transcript::keep(&format!("{text}\n"));
        match &mut self.show {
            Show::Bar(bar) => bar.println(text),
            Show::Lines(out) | Show::Messages(out) => {
                let _ = writeln!(out, "{text}").and_then(|()| out.flush());
            }
        }
        Ok(())
    }

    fn finish(&mut self, end: &End) -> SinkResult {
        // Left on the screen as it is; after an error, it would be in the way of what is said of it.
        if let (Show::Bar(bar), End::Finished | End::Stopped) = (&self.show, end) {
            bar.abandon();
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
            .map(|l| l.split("  loss").next().unwrap())
            .collect();
        assert_eq!(
            steps,
            ["step  4/25", "step 10/25", "step 20/25", "step 25/25"]
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
            "step 25/25  loss 5.250  lr 4.2e-5  grad_norm 1.500  12.3k tok/s\n\
             step 25/25  val_loss 4.500  accuracy 0.5000\n\
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
            "step 10  loss 5.250  lr 4.2e-5  grad_norm 1.500  12.3k tok/s\n"
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
        console.finish(&End::Finished).unwrap();
        let screen = term.contents();
        let lines: Vec<_> = screen.lines().collect();
        assert_eq!(
            lines[..2],
            ["checkpoint saved", "step 25/50  val_loss 4.500"]
        );
        assert!(lines[2].starts_with("step 25/50 [="), "{screen}");
        assert!(
            lines[2].contains("loss 5.250  lr 4.2e-5  12.3k tok/s  ETA "),
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
        console.finish(&End::Finished).unwrap();
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
}
