//! How a run ended: `summary.json` and the last lines on screen.

use std::fmt::Write;
use std::path::Path;

use tt_collators::Baselines;
use tt_metrics::{Scalars, Summary};
use tt_train::{BadStep, Cause, Outcome};

use crate::program;
use crate::quote;
use crate::run_dir::{RunDir, SUMMARY};

/// What masked language modelling reports of validation.
const MASKED_ACCURACY: &str = "val_masked_accuracy";
/// What preferences report: how often the chosen answer leads.
const PREFERENCE_ACCURACY: &str = "val_rewards/accuracies";
/// The trainer's own loss, where it is not the cross-entropy.
const OBJECTIVE: &str = "val_objective";

/// The flag that begins a recorded run anew.
pub const RERUN_FLAG: &str = "--experimental-rerun";

/// Writes the summary, unless the run was stopped.
pub fn write_summary(
    outcome: &Outcome,
    baselines: &Baselines,
    run_dir: &RunDir,
) -> tt_metrics::Result<()> {
    let Some(loss) = outcome.final_val_loss else {
        return Ok(());
    };
    let mut scalars = Scalars::from([
        ("bigram_nats".to_owned(), baselines.bigram_nats.into()),
        (
            "unigram_accuracy".to_owned(),
            baselines.unigram_accuracy.into(),
        ),
    ]);
    let reported = outcome.final_val_scalars.iter();
    scalars.extend(reported.map(|(name, value)| (format!("final_{name}"), *value)));
    let summary = Summary {
        final_val_loss: Some(loss),
        unigram_nats: Some(baselines.unigram_nats),
        steps: Some(outcome.step),
        tokens: Some(outcome.tokens),
        train_loss: outcome.train_loss,
        wall_time_seconds: Some(outcome.wall_time.as_secs_f64()),
        checkpoint: Some(outcome.checkpoint.clone()),
        tokens_per_second: speed(outcome),
        peak_rss_bytes: tt_metrics::peak_rss_bytes(),
        scalars,
    };
    summary.write(&run_dir.path().join(SUMMARY))
}

/// What the user wants to know. `stretches` says that the schedule of the learning rate is as long as the run, `page` where
/// its report is.
pub fn closing_lines(
    outcome: &Outcome,
    baselines: &Baselines,
    run_dir: &RunDir,
    arguments: &[String],
    stretches: bool,
    page: Option<&Path>,
) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        writeln!(text, "{name:<12}{value}").expect("into a string");
    };
    let reported = |name: &str| outcome.final_val_scalars.get(name).map(|it| it.to_f64());
    match (outcome.final_val_loss, reported(PREFERENCE_ACCURACY)) {
        // Their cross-entropy is of the rejected answers too, and not what is learned.
        (Some(_), Some(accuracy)) => row("preferences", preferences(accuracy, reported(OBJECTIVE))),
        (Some(loss), None) => row("loss", loss_against(f64::from(loss), baselines)),
        (None, _) => row("stopped", format!("after step {}", outcome.step)),
    }
    if let Some(accuracy) = reported(MASKED_ACCURACY) {
        row("accuracy", accuracy_against(accuracy, baselines));
    }
    if let Some(tokens_per_second) = speed(outcome) {
        row("speed", format!("{tokens_per_second:.0} tokens/s"));
    }
    // Stopped before its first step, a run has none.
    if !outcome.checkpoint.as_os_str().is_empty() {
        row("checkpoint", outcome.checkpoint.display().to_string());
    }
    if let Some(page) = page {
        row("report", page.display().to_string());
    }
    if outcome.final_val_loss.is_none() {
        let command = continuing(arguments, run_dir.path());
        row("continue", command_line(&command));
        return text;
    }
    if let Some((epochs, false)) = outcome.epochs {
        let why = format!("trainer.max_steps came before the end of {epochs} epochs");
        row("ended", why);
    }
    if stretches {
        let why = "as long as the run: gone on with, it is stretched over twice the length";
        row("schedule", why.to_owned());
    }
    // Last, and on one line, to be copied.
    row("continue", extended(arguments, run_dir, outcome));
    text
}

/// Tokens per second; `None` if there was no step left to make.
fn speed(outcome: &Outcome) -> Option<f64> {
    let speed = outcome.tokens_per_second;
    (speed > 0.0).then_some(speed)
}

fn preferences(accuracy: f64, objective: Option<f64>) -> String {
    let objective = objective.map(|loss| format!("; objective {loss:.4}"));
    format!(
        "{:.1} % of the pairs on validation: the chosen answer leads{}",
        100.0 * accuracy,
        objective.unwrap_or_default()
    )
}

fn accuracy_against(accuracy: f64, baselines: &Baselines) -> String {
    format!(
        "{:.1} % of the hidden tokens on validation; the most frequent token would be right for {:.1} %",
        100.0 * accuracy,
        100.0 * baselines.unigram_accuracy
    )
}

fn loss_against(loss: f64, baselines: &Baselines) -> String {
    let against = |name: &str, nats: f64| {
        let percent = 100.0 * (1.0 - loss / nats);
        let side = if percent < 0.0 { "over" } else { "under" };
        format!("{:.0} % {side} {name} {nats:.4}", percent.abs())
    };
    format!(
        "{loss:.4} nats/token on validation: {}, {}",
        against("unigram", baselines.unigram_nats),
        against("bigram", baselines.bigram_nats)
    )
}

/// The arguments that go on with the unfinished run in `folder`, as short as can be.
pub fn continuing(arguments: &[String], folder: &Path) -> Vec<String> {
    // `resume=auto` finds the run, as any other value would not; but a rerun begins anew if it is not told.
    let is_rerun = |argument: &String| argument.starts_with(RERUN_FLAG);
    if arguments.iter().any(is_rerun) {
        resuming(arguments, folder)
    } else {
        without(arguments, &["resume="])
    }
}

/// The arguments that go on with the run in `folder` and no other.
pub fn resuming(arguments: &[String], folder: &Path) -> Vec<String> {
    let mut arguments = without(arguments, &["resume="]);
    arguments.push(format!("resume={}", quote::value(folder)));
    arguments
}

/// The command that goes on with this finished run until it is twice as long.
fn extended(arguments: &[String], run_dir: &RunDir, outcome: &Outcome) -> String {
    const STEPS: &str = "trainer.max_steps=";
    let mut longer = Vec::new();
    if let Some((epochs, true)) = outcome.epochs {
        longer.push(("trainer.num_epochs=", 2 * epochs));
    }
    // The data may have ended with the last of the steps.
    if longer.is_empty() || arguments.contains(&format!("{STEPS}{}", outcome.step)) {
        longer.push((STEPS, 2 * outcome.step));
    }
    let keys: Vec<&str> = longer.iter().map(|(key, _)| *key).collect();
    let mut arguments = resuming(&without(arguments, &keys), run_dir.path());
    arguments.extend(longer.iter().map(|(key, twice)| format!("{key}{twice}")));
    command_line(&arguments)
}

/// What to do about a run that a step has ended.
pub fn advice(bad: &BadStep, run_dir: &RunDir, arguments: &[String]) -> String {
    if bad.is_in_weights() {
        return "no batch is to blame: begin with weights that are finite, or go on from a checkpoint of finite ones with \
                resume=CHECKPOINT"
            .to_owned();
    }
    if bad.skipped_before > 0 {
        return "too many in a row for the data to be to blame: go on from an earlier checkpoint with resume=CHECKPOINT, \
                at a lower lr or trainer.max_grad_norm"
            .to_owned();
    }
    let key = match bad.cause {
        Cause::Spike(_) => "trainer.spike_guard.action",
        _ => "trainer.bad_steps.action",
    };
    let mut command = without(arguments, &["resume=", &format!("{key}=")]);
    // Before the first step there is nothing to resume.
    if bad.step > 1 {
        command.push(format!("resume={}", quote::value(run_dir.path())));
    }
    command.push(format!("{key}=skip"));
    format!(
        "if it is the batch, this goes on without it; otherwise lower lr or trainer.max_grad_norm:\n  {}",
        command_line(&command)
    )
}

fn without(arguments: &[String], keys: &[&str]) -> Vec<String> {
    let is_kept = |argument: &&String| !keys.iter().any(|key| argument.starts_with(key));
    arguments.iter().filter(is_kept).cloned().collect()
}

/// The command line, quoted for a shell.
pub fn command_line(arguments: &[String]) -> String {
    let quoted = arguments.iter().map(|argument| quote::shell(argument));
    let words: Vec<_> = std::iter::once(program::running().name.to_owned())
        .chain(quoted)
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use tt_train::Ending;

    use super::*;

    fn strings(arguments: &[&str]) -> Vec<String> {
        arguments.iter().map(|&argument| argument.into()).collect()
    }

    fn report_of(final_val_loss: Option<f32>) -> String {
        let arguments = strings(&["+model=qwen2", "trainer.max_steps=10", "resume=none"]);
        report_on(final_val_loss, &arguments)
    }

    fn report_on(final_val_loss: Option<f32>, arguments: &[String]) -> String {
        report_with(final_val_loss, None, arguments)
    }

    fn report_with(
        final_val_loss: Option<f32>,
        epochs: Option<(u64, bool)>,
        arguments: &[String],
    ) -> String {
        let root = tempfile::tempdir().unwrap();
        let run_dir = RunDir::open(&root.path().join("run")).unwrap();
        let outcome = Outcome {
            ending: match final_val_loss {
                Some(_) => Ending::Finished,
                None => Ending::Stopped,
            },
            step: 10,
            epochs,
            final_val_loss,
            final_val_scalars: Scalars::new(),
            tokens: 320,
            train_loss: Some(2.0),
            wall_time: Duration::from_secs(1),
            checkpoint: PathBuf::from("run/checkpoints/step-00000010"),
            tokens_per_second: 1234.5,
        };
        let baselines = Baselines {
            unigram_nats: 5.0,
            unigram_accuracy: 0.125,
            bigram_nats: 2.0,
        };
        let stretches = epochs.is_some();
        let report = closing_lines(&outcome, &baselines, &run_dir, arguments, stretches, None);
        report.replace(&root.path().display().to_string(), "")
    }

    #[test]
    fn a_finished_run_tells_loss_speed_checkpoint_and_how_to_continue() {
        assert_eq!(
            report_of(Some(2.5)),
            "\
loss        2.5000 nats/token on validation: 50 % under unigram 5.0000, 25 % over bigram 2.0000
speed       1234 tokens/s
checkpoint  run/checkpoints/step-00000010
continue    tpu-train +model=qwen2 resume=/run trainer.max_steps=20
"
        );
    }

    #[test]
    fn a_stopped_run_is_continued_by_the_same_command() {
        assert_eq!(
            report_of(None),
            "\
stopped     after step 10
speed       1234 tokens/s
checkpoint  run/checkpoints/step-00000010
continue    tpu-train +model=qwen2 trainer.max_steps=10
"
        );
    }

    #[test]
    fn a_run_is_made_longer_by_what_ended_it() {
        let arguments = strings(&["trainer.num_epochs=3", "trainer.max_steps=99"]);
        let report = report_with(Some(2.5), Some((3, true)), &arguments);
        let command =
            "\ncontinue    tpu-train trainer.max_steps=99 resume=/run trainer.num_epochs=6\n";
        assert!(report.contains(command), "{report}");
        assert!(
            report.contains("\nschedule    as long as the run"),
            "{report}"
        );
        let both = strings(&["trainer.num_epochs=3", "trainer.max_steps=10"]);
        let report = report_with(Some(2.5), Some((3, true)), &both);
        let command =
            "\ncontinue    tpu-train resume=/run trainer.num_epochs=6 trainer.max_steps=20\n";
        assert!(report.contains(command), "{report}");
        let report = report_with(Some(2.5), Some((3, false)), &arguments);
        let command = "\nended       trainer.max_steps came before the end of 3 epochs\n\
                       schedule    as long as the run: gone on with, it is stretched over twice the length\n\
                       continue    tpu-train trainer.num_epochs=3 resume=/run trainer.max_steps=20\n";
        assert!(report.contains(command), "{report}");
    }

    #[test]
    fn a_stopped_rerun_is_continued_in_its_own_folder() {
        let report = report_on(None, &strings(&["--experimental-rerun", "first"]));
        let command = "continue    tpu-train --experimental-rerun first resume=/run\n";
        assert!(report.ends_with(command), "{report}");
    }

    #[test]
    fn arguments_are_quoted_for_a_shell() {
        assert_eq!(
            command_line(&strings(&[
                "data.path=a b/*.txt",
                "lr=5e-5",
                "~x",
                "name='a'",
                ""
            ])),
            r"tpu-train 'data.path=a b/*.txt' lr=5e-5 '~x' 'name='\''a'\''' ''"
        );
    }
}
