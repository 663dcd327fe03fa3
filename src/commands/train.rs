//! `tpu-train train`: from a composed configuration to a trained checkpoint.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tt_checkpoint::{Checkpoint, CheckpointConfig};
use tt_collators::Pipeline;
use tt_config::{Composer, Composition, Diagnostics, Missing, Node};
use tt_data::Tokenizer;
use tt_dist::Communicator;
use tt_dist::mpi::Processes;
use tt_launch::{EXIT_INTERRUPTED, EXIT_PREEMPTED, StopSignal, worker};
use tt_metrics::transcript::{self, CONSOLE_LOG};
use tt_metrics::{Jsonl, Metrics, Progress, RunInfo, Sink, Truncation};
use tt_nn::ParamTree;
use tt_run::ending::{advice, closing_lines, command_line, write_summary};
use tt_run::run_dir::{HISTOGRAMS, METRICS, SAMPLES};
use tt_run::{
    Decision, Entered, HeldFolder, OutputDir, Resume, RunDir, RunRequest, Segment, Start,
};
use tt_tensor::Device;
use tt_train::{Ending, StopFlag, TrainJob, TrainState};

use crate::args::Options;
use crate::config::Backend;
use crate::device::{report_declined, report_fallbacks, report_work};
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::out::{self, Talk};
use crate::plugins::Plugins;
use crate::publish::push::{self, Push};
use crate::ranks::{self, Others, Task};
use crate::report;
use crate::setup::{Setup, data_problem, job, problem, sharding, tokens};

pub(crate) fn run(mut invocation: Invocation) -> Result<ExitCode, Failure> {
    out::is_log();
    let setup = Setup::read(&invocation)?;
    let is_debug = setup.config.debug;
    let followers = match ranks::processes() {
        Some(_) => Vec::new(), // they read for themselves what they will be told
        None => (1..setup.config.num_ranks())
            .map(|_| Follower::read(&invocation))
            .collect::<Result<_, _>>()?,
    };
    let Invocation {
        composition,
        arguments,
        ..
    } = &mut invocation;
    train(composition, setup, followers, arguments).inspect_err(|failure| {
        if let (true, Some(error)) = (is_debug, failure.error()) {
            out::error_line(format_args!("{error:?}"));
        }
    })
}

/// Everything that may be wrong with the request comes before the first file is written.
fn train(
    composition: &mut Composition,
    mut setup: Setup,
    followers: Vec<Follower>,
    arguments: &[String],
) -> Result<ExitCode, Failure> {
    out::set_talk(match setup.config.logging.progress {
        Progress::Json => Talk::Aside,
        Progress::Quiet => Talk::Off,
        _ => Talk::Usual,
    });
    setup.config.device.start_threads()?;
    let stop = StopFlag::default();
    let signal = StopSignal::install(stop.shared()).map_err(Failure::run)?;
    let (start, held) = match decide(composition, &setup)? {
        (Decision::Start(start), held) => (start, held),
        (Decision::Finished(folder), _) => return finished(&folder, composition, &setup, &stop),
    };
    start.messages.iter().for_each(out::line);
    let first_step = start.first_step();
    let Start {
        folder,
        checkpoint,
        origin,
        max_steps,
        ..
    } = start;
    let mut data = setup.open_data(composition, checkpoint.as_ref())?;
    let filled = tokens::fill(&mut data);
    if let Some(tokenized) = filled.map_err(|error| data_problem(composition, &error))? {
        out::line(tokens::describe(&tokenized));
    }
    if let Some(summary) = data.summary().map_err(Failure::run)? {
        out::line(summary);
    }
    let start_step = setup.config.data.start_step.filter(|&step| step > 0);
    if let (None, Some(start_step)) = (&checkpoint, start_step) {
        let start = data.start();
        let start = start.map_err(|error| data_problem(composition, &error))?;
        out::line(format!(
            "the data begins at {start}, after the {start_step} steps of data.start_step"
        ));
    }
    // Conversations begin as their template says.
    if let Some(how) = document_start(data.tokenizer()).filter(|_| data.answer_end().is_none()) {
        out::line(how);
    }
    if checkpoint.is_none()
        && let Some(pretrained) = &setup.pretrained
    {
        let model = &*setup.model;
        let said = [pretrained.passed_over(model), pretrained.new_head(model)];
        said.iter().flatten().for_each(out::line);
    }
    let baselines = data.baselines().map_err(Failure::run)?;

    if setup.config.dist.backend == Backend::C2c {
        let group = serde_json::to_string(&setup.config.device);
        ranks::link(group.expect("strings and numbers"))?;
    }
    let device = setup.config.device.device().map_err(Failure::Request)?;
    if let Some(checkpoint) = &checkpoint {
        warn_of_changes(checkpoint, &data, device)?;
    }
    let sinks = std::mem::take(&mut setup.sinks);
    let with_report = setup.config.logging.report;
    let histogram_interval = histogram_interval(&setup);
    let mut run = RunInfo {
        name: setup.config.name.clone(),
        project: setup.config.project.clone(),
        notes: setup.config.notes.clone(),
        step: first_step,
        log_interval: setup.trainer_config.log_interval,
        ..RunInfo::default()
    };
    let run_length = job::run_length(&setup, &data)?;
    run.num_steps = run_length.or(max_steps);
    if let Some(length) = run.num_steps
        && let Some((steps, key)) = setup.optimizers.endless_warmup(length)
    {
        out::line(format!(
            "warning: the learning rate still rises when the run ends after {length} steps: {key}={steps}"
        ));
    }
    let checkpoint_config = setup.trainer_config.checkpoint.clone();
    let stretches = setup.optimizers.needs_run_length();
    let num_ranks = setup.config.num_ranks();
    let warnings = sharding::warnings(&setup.trainer_config, &setup.layout);
    warnings.iter().for_each(out::line);
    let timeout = setup.config.dist.timeout_seconds.map(Duration::from_secs);
    let (of_followers, asked) = (checkpoint.clone(), stop.clone());
    let follow = |follower: Follower, world| {
        let checkpoint = of_followers.clone();
        follower.follow(checkpoint, run_length, asked.clone(), world)
    };
    let others = match ranks::processes() {
        Some(_) => Others::Processes(Task {
            config: composition.resolve(Missing::Keep)?.to_yaml(),
            checkpoint: checkpoint.as_ref().map(|it| it.dir().to_owned()),
            run_length,
        }),
        None => Others::Threads(followers),
    };
    ranks::run(others, timeout, follow, |world| {
        let job = job::assemble(
            setup,
            composition,
            data,
            checkpoint,
            run_length,
            stop.clone(),
            world,
        )?;
        if let Some(checkpoint) = &job.resume {
            warn_of_rates(&job, checkpoint)?;
        }
        let size = size(&job.params);
        let prepared = job.prepare().map_err(Failure::from)?;
        let push = open_push(composition, &checkpoint_config)?;
        signal.save_first();
        // What does not fit has been refused by now: until here an earlier run is what it was, and where it was.
        let entered = held.enter(&folder).map_err(Failure::request)?;
        let Entered {
            run_dir,
            moved_aside,
        } = entered;
        if let Some(aside) = moved_aside {
            out::line(format!("moved the earlier run to {}", aside.display()));
        }
        worker::set_run_folder(run_dir.path()).map_err(Failure::run)?;
        keep_transcript(&run_dir, arguments);
        let segment = Segment {
            first_step: first_step + 1,
            instruction_set: Some(device.instruction_set().to_owned()),
            ranks: Some(num_ranks),
            ..Segment::default()
        };
        run.config = tt_run::record(composition, &run_dir, segment)?;
        run.id = run_dir.id().map_err(Failure::run)?;
        run.dir = run_dir.path().to_owned();
        run_dir
            .set_origin(origin.as_deref())
            .map_err(Failure::run)?;
        out::line(format!(
            "{size}; baselines on validation: unigram {:.4}, bigram {:.4} nats/token",
            baselines.unigram_nats, baselines.bigram_nats
        ));
        out::line(format!("run folder {}", run_dir.path().display()));
        let metrics = open_metrics(&run, sinks, histogram_interval.is_some())?;
        let mut summary = Ok(());
        let outcome = prepared
            .with_mirror(push.as_ref().map(Push::mirror))
            .with_histograms(histogram_interval)
            .run_with(run_dir.path(), metrics, |outcome, metrics| {
                if let Ok(outcome) = outcome {
                    report_fallbacks(device);
                    report_declined(device);
                    report_work(device);
                    summary = write_summary(outcome, &baselines, &run_dir);
                }
                // Also in failure: the curves of a run that failed are looked at first of all.
                let page = with_report
                    .then(|| write_report(run_dir.path(), metrics))
                    .flatten();
                if let (Ok(outcome), Ok(())) = (outcome, &summary) {
                    out::text(closing_lines(
                        outcome,
                        &baselines,
                        &run_dir,
                        arguments,
                        stretches,
                        page.as_deref(),
                    ));
                }
            })
            .map_err(|error| match &error {
                tt_train::Error::BadStep { bad, .. } => {
                    let advice = advice(bad, &run_dir, arguments);
                    Failure::Run(anyhow::anyhow!("{error}\n  {advice}"))
                }
                _ => error.into(),
            });
        let ending = outcome.and_then(|outcome| {
            summary.map_err(Failure::run)?;
            Ok(outcome.ending)
        });
        let mut is_interrupted = false;
        if let Some(push) = push {
            // Whoever stops a run wants it to end; what goes on with it sends the checkpoint.
            let at_most = match ending {
                Ok(Ending::Finished) => Duration::from_secs(checkpoint_config.hub_wait_seconds),
                _ => Duration::ZERO,
            };
            is_interrupted = push.finish(at_most, &|| stop.is_requested());
        }
        Ok(match ending? {
            Ending::Finished if !is_interrupted => ExitCode::SUCCESS,
            _ => ExitCode::from(stopped_code(&signal)),
        })
    })
}

/// Trains in another process than the first rank's, as that has decided.
pub(crate) fn follow(task: Task, plugins: Plugins, processes: &Processes) -> Result<(), Failure> {
    follow_as_told(task, plugins, processes).map_err(of_rank_0)
}

/// A problem with a configuration that stands in no file here: what it is, as where it was written only rank 0 knows.
fn of_rank_0(failure: Failure) -> Failure {
    let Failure::Config(problems) = failure else {
        return failure;
    };
    let messages: Vec<&str> = problems.iter().map(|it| it.message()).collect();
    Failure::Request(anyhow::anyhow!(
        "{}, in the configuration of rank 0",
        messages.join("; ")
    ))
}

fn follow_as_told(task: Task, plugins: Plugins, processes: &Processes) -> Result<(), Failure> {
    let follower = Follower::told(&task, plugins)?;
    let config = &follower.setup.config;
    config.device.start_threads()?;
    let timeout = config.dist.timeout_seconds.map(Duration::from_secs);
    let checkpoint = task.checkpoint.as_deref().map(Checkpoint::open);
    let checkpoint = checkpoint.transpose().map_err(Failure::request)?;
    let stop = StopFlag::default();
    let signal = StopSignal::install_silently(stop.shared()).map_err(Failure::run)?;
    signal.save_first();
    follower.follow(checkpoint, task.run_length, stop, processes.world(timeout))
}

/// What another rank than the first is made of.
struct Follower {
    composition: Composition,
    setup: Setup,
}

impl Follower {
    fn read(invocation: &Invocation) -> Result<Self, Failure> {
        let invocation = invocation.with(&[])?;
        let setup = Setup::read(&invocation)?;
        Ok(Self::new(invocation, setup))
    }

    /// From what the first rank has composed.
    fn told(task: &Task, plugins: Plugins) -> Result<Self, Failure> {
        // Embedded files are of the program, and last as long as it does; this one is composed once.
        let config: &'static str = task.config.clone().leak();
        let files = vec![("resolved.yaml", config)].leak();
        let composer = Composer::new("resolved").embedded("rank 0", files);
        let composition = composer.compose::<&str>(&[])?;
        let invocation = Invocation {
            composition,
            plugins,
            composer,
            overrides: Vec::new(),
            arguments: Vec::new(),
            options: Options::default(),
        };
        let setup = Setup::read(&invocation)?;
        Ok(Self::new(invocation, setup))
    }

    fn new(invocation: Invocation, mut setup: Setup) -> Self {
        // The first rank measures and traces for all.
        setup.config.device.peak_tflops = None;
        setup.config.profile = None;
        Self {
            composition: invocation.composition,
            setup,
        }
    }

    /// Trains as the first rank does, from the same checkpoint.
    fn follow(
        self,
        checkpoint: Option<Checkpoint>,
        run_length: Option<u64>,
        stop: StopFlag,
        world: Arc<dyn Communicator>,
    ) -> Result<(), Failure> {
        let Self { composition, setup } = self;
        let histogram_interval = histogram_interval(&setup);
        let data = setup.open_data(&composition, checkpoint.as_ref())?;
        let world = Some(world);
        let job = job::assemble(
            setup,
            &composition,
            data,
            checkpoint,
            run_length,
            stop,
            world,
        )?;
        let prepared = job.prepare()?.with_histograms(histogram_interval);
        Ok(prepared.follow()?)
    }
}

fn histogram_interval(setup: &Setup) -> Option<u64> {
    let interval = setup.config.logging.histogram_interval;
    interval.filter(|&steps| steps > 0)
}

/// Without a signal it was another process of the run that was asked to stop, by one, or somebody on the site of a sink.
fn stopped_code(signal: &StopSignal) -> u8 {
    let by_others = match ranks::processes() {
        Some(_) => EXIT_PREEMPTED,
        None => EXIT_INTERRUPTED,
    };
    signal.exit_code().unwrap_or(by_others)
}

/// How documents begin, if the tokenizer has a say in it.
fn document_start(tokenizer: &Tokenizer) -> Option<String> {
    let tokens = tokenizer.document_start().iter();
    let tokens: Vec<_> = tokens.filter_map(|&id| tokenizer.token(id)).collect();
    (!tokens.is_empty()).then(|| {
        format!(
            "each document begins with {}, as the tokenizer says; +data.tokenizer.add_special_tokens=false leaves it out",
            tokens.join("")
        )
    })
}

/// The page of the run, or a warning: a report that fails does not fail the run. The sinks get its plots.
fn write_report(folder: &Path, metrics: &mut Metrics) -> Option<PathBuf> {
    let written = report::write_run(folder, false).map(|(page, plots)| {
        plots.iter().for_each(|plot| metrics.image(plot));
        page
    });
    let warn = |error: &anyhow::Error| {
        out::error_line(format_args!("warning: no report of the run: {error:#}"));
    };
    written.inspect_err(warn).ok()
}

fn open_push(
    composition: &Composition,
    config: &CheckpointConfig,
) -> Result<Option<Push>, Diagnostics> {
    Push::open(config).map_err(|error| {
        let why = format!("`{}`: {error:#}", push::KEY);
        problem(composition, push::KEY, why).into()
    })
}

fn finished(
    folder: &Path,
    composition: &Composition,
    setup: &Setup,
    stop: &StopFlag,
) -> Result<ExitCode, Failure> {
    out::line(format!(
        "{} has finished already, nothing is left to do; a greater trainer.max_steps goes on, resume=none starts afresh",
        folder.display()
    ));
    let config = &setup.trainer_config.checkpoint;
    if config.hub.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    // It may have been killed while it sent its last checkpoint.
    let last =
        tt_checkpoint::latest(&tt_run::run_dir::checkpoints(folder)).map_err(Failure::run)?;
    if let Some(last) = last.checkpoint
        && let Some(push) = open_push(composition, config)?
    {
        push.take(&last);
        let at_most = Duration::from_secs(config.hub_wait_seconds);
        push.finish(at_most, &|| stop.is_requested());
    }
    Ok(ExitCode::SUCCESS)
}

fn decide(composition: &Composition, setup: &Setup) -> Result<(Decision, HeldFolder), Failure> {
    let run_dir = composition.resolved("hydra.run.dir", Missing::Refuse)?;
    let pattern = composition.get("hydra.run.dir").and_then(Node::as_str);
    let config = composition.resolve(Missing::Keep)?.to_json();
    let request = RunRequest {
        output_dir: OutputDir::new(
            run_dir.as_str().unwrap_or_default(),
            pattern.unwrap_or_default(),
        ),
        config: &config,
        resume: Resume::from(setup.config.resume.as_str()),
        max_steps: setup.trainer_config.max_steps,
    };
    tt_run::decide_and_hold(&request).map_err(Failure::request)
}

/// What was printed so far and will be goes to a file in the folder too; without one the run is no worse.
fn keep_transcript(run_dir: &RunDir, arguments: &[String]) {
    let path = run_dir.path().join(CONSOLE_LOG);
    let header = format!("$ {}", command_line(arguments));
    if let Err(error) = transcript::begin(&path, &header) {
        out::error_line(format_args!(
            "warning: cannot write {}: {error}; the run goes on without it",
            path.display()
        ));
    }
}

/// The record of the run, cut back to the step it goes on from, and its sinks, told of both.
fn open_metrics(
    run: &RunInfo,
    sinks: Vec<(String, Box<dyn Sink>)>,
    has_histograms: bool,
) -> Result<Metrics, Failure> {
    let (jsonl, truncation) = open_rows(run, METRICS)?;
    let (samples, _) = open_rows(run, SAMPLES)?;
    match truncation.steps_dropped {
        0 => {}
        1 => out::line("1 step after the checkpoint is made again"),
        steps => out::line(format!("{steps} steps after the checkpoint are made again")),
    }
    // A kill leaves one half-written line.
    if truncation.rows_damaged > 0 {
        out::line(format!(
            "lines of metrics.jsonl dropped as unreadable: {}",
            truncation.rows_damaged
        ));
    }
    let mut metrics = Metrics::new(jsonl).keeping_samples(samples);
    // Those of an earlier process are cut back also by one that makes none.
    if has_histograms || run.dir.join(HISTOGRAMS).exists() {
        let (histograms, _) = open_rows(run, HISTOGRAMS)?;
        metrics = metrics.keeping_histograms(histograms);
    }
    for (name, sink) in sinks {
        metrics = metrics.with_named(name, sink);
    }
    metrics.start(run, truncation);
    Ok(metrics)
}

/// A file of rows in the run folder, which ends with those of the step that the run goes on from.
fn open_rows(run: &RunInfo, name: &str) -> Result<(Jsonl, Truncation), Failure> {
    let path = run.dir.join(name);
    match run.step {
        0 => Jsonl::create(&path).map(|file| (file, Truncation::default())),
        step => Jsonl::resume(&path, step),
    }
    .map_err(Failure::run)
}

/// How many parameters there are, and how many of them are trained if not all are.
fn size(params: &ParamTree) -> String {
    let trained = params.iter().filter(|(_, p)| p.is_trainable());
    let trained: usize = trained
        .map(|(spec, _)| spec.shape.iter().product::<usize>())
        .sum();
    let millions = |count: usize| format!("{:.2} M", count as f64 / 1e6);
    let all = millions(params.elem_count());
    if trained == params.elem_count() {
        format!("{all} parameters")
    } else {
        format!("{all} parameters, {} trained", millions(trained))
    }
}

/// Says where the learning rate jumps: a schedule over more steps, or another peak.
fn warn_of_rates(job: &TrainJob, checkpoint: &Checkpoint) -> Result<(), Failure> {
    let state = TrainState::read(checkpoint).map_err(Failure::request)?;
    for (name, before, now) in state.rate_changes(&job.optimizers) {
        let of = job.optimizers.qualified(name, "learning rate");
        out::line(format!(
            "warning: the {of} of step {} is {now:.3e}, and would have been {before:.3e} before the config changed",
            state.step + 1
        ));
    }
    Ok(())
}

/// Says what is not as it was when the checkpoint was made.
fn warn_of_changes(
    checkpoint: &Checkpoint,
    data: &Pipeline,
    device: Device,
) -> Result<(), Failure> {
    let state = TrainState::read(checkpoint).map_err(Failure::request)?;
    let (then, now) = (&state.instruction_set, device.instruction_set());
    if then != now {
        out::line(format!(
            "warning: the run began with {then} instructions and goes on with {now}: rounding may differ"
        ));
    }
    // The oldest checkpoints do not say.
    if !state.data.is_empty() && state.data != data.fingerprint() {
        out::line(
            "warning: the data has changed since the checkpoint; it goes on at the same position",
        );
    }
    Ok(())
}
