use tt_config::Part;

use super::flags::FLAGS;
use super::*;

fn parsed(args: &[&str]) -> Result<Args, UsageError> {
    match parse(args.iter().map(OsString::from))? {
        Request::Run(_, args) => Ok(args),
        _ => panic!("{args:?} asks for a text"),
    }
}

#[test]
fn flags_and_overrides_mix_in_any_order() {
    let args = parsed(&[
        "+model=qwen2",
        "--cfg",
        "job",
        "lr=5e-5",
        "-p=trainer",
        "--resolve",
    ]);
    let args = args.unwrap();
    assert_eq!(args.overrides, ["+model=qwen2", "lr=5e-5"]);
    assert_eq!(args.show, Some(Show::Config(Part::Job)));
    assert_eq!(args.package.as_deref(), Some("trainer"));
    assert!(args.resolve);
}

#[test]
fn short_forms_have_one_letter_or_two() {
    let args = parsed(&["-cn", "mine", "-cd=more", "-c", "all"]).unwrap();
    assert_eq!(args.config_name.as_deref(), Some("mine"));
    assert_eq!(args.config_dir, Some("more".into()));
    assert_eq!(args.show, Some(Show::Config(Part::All)));
}

#[test]
fn everything_after_two_dashes_is_an_override() {
    assert_eq!(
        parsed(&["--", "--cfg=job"]).unwrap().overrides,
        ["--cfg=job"]
    );
}

#[test]
fn a_value_may_begin_with_a_dash() {
    assert_eq!(
        parsed(&["-cn", "-odd"]).unwrap().config_name.as_deref(),
        Some("-odd")
    );
}

#[test]
fn a_command_may_follow_its_overrides() {
    assert_eq!(parsed(&["lr=1", "train"]).unwrap().overrides, ["lr=1"]);
}

#[test]
fn the_overrides_of_a_variant_come_one_by_one_or_together() {
    let args = parsed(&["diff", "--a", "x=1 y=2", "lr=1", "--a=z=3", "--b", ""]).unwrap();
    assert_eq!(args.options.diff.a, ["x=1", "y=2", "z=3"]);
    assert_eq!(args.options.diff.b.as_deref(), Some(&[][..]));
    assert_eq!(args.overrides, ["lr=1"]);
}

#[test]
fn bench_takes_what_it_measures_wherever_it_stands() {
    let args = parsed(&["bench", "lr=1", "generate", "--json"]).unwrap();
    assert_eq!(args.options.bench, Some(BenchKind::Generate));
    assert_eq!(args.overrides, ["lr=1"]);
    assert_eq!(parsed(&["bench"]).unwrap().options.bench, None);
    let message = |args: &[&str]| parsed(args).unwrap_err().to_string();
    assert_eq!(
        message(&["bench", "load"]),
        "`bench` does not measure `load`, did you mean `loader`?: it measures step, ops, loader, checkpoint or generate"
    );
    assert_eq!(
        message(&["bench", "ops", "step"]),
        "`bench` measures one thing at a time: step, ops, loader, checkpoint or generate"
    );
}

#[test]
fn operands_of_inspect_are_paths_even_if_they_look_like_commands() {
    let args = parsed(&["inspect", "train", "b"]).unwrap();
    assert_eq!(args.overrides, ["train", "b"]);
}

#[test]
fn what_cannot_be_read_is_told_apart() {
    let message = |args: &[&str]| parsed(args).unwrap_err().to_string();
    assert_eq!(
        message(&["--cfgs"]),
        "unknown flag `--cfgs`, did you mean `--cfg`?"
    );
    assert_eq!(
        message(&["--cfg"]),
        "flag `--cfg` needs a value: job|hydra|all"
    );
    assert_eq!(
        message(&["-c=x"]),
        "`x` is not a value of `-c`: job, hydra or all"
    );
    assert_eq!(message(&["--resolve=1"]), "flag `--resolve` takes no value");
    assert_eq!(
        message(&["--resolve"]),
        "flag `--resolve` does nothing without `--cfg`"
    );
    assert!(message(&["trian"]).contains("did you mean `train`?"));
    assert_eq!(
        message(&["-m", "--cfg=job"]),
        "flags `--multirun` and `--cfg` exclude each other"
    );
    assert_eq!(
        message(&["--experimental-rerun=a", "-cn", "b"]),
        "flags `--experimental-rerun` and `--config-name` exclude each other"
    );
    assert_eq!(
        message(&["generate", "-m"]),
        "`--multirun` is for `train`, not for `generate`"
    );
    assert_eq!(
        message(&["runs", "--quiet"]),
        "`--quiet` is for `train`, not for `runs`"
    );
    assert_eq!(
        message(&["plan", "--b", "lr=1"]),
        "`--b` is for `diff`, not for `plan`"
    );
    assert_eq!(
        message(&["diff", "--b"]),
        "flag `--b` needs a value: OVERRIDE"
    );
    assert_eq!(
        message(&["diff", "--tolerance=little"]),
        "`little` is not a value of `--tolerance`: a number such as 1e-4"
    );
    assert_eq!(
        message(&["plan", "--memory=much"]),
        "`much` is not a value of `--memory`: a size such as 24GB or 512MiB"
    );
}

#[test]
fn every_flag_is_distinct_sorted_into_the_help_and_documented() {
    let help = help("my-lab", None, &[("model".into(), vec!["qwen2".into()])]);
    let mut names = Vec::new();
    for flag in FLAGS {
        assert!(flag.long.starts_with("--"), "{}", flag.long);
        assert!(
            flag.about.starts_with(|c: char| c.is_uppercase()),
            "{}",
            flag.long
        );
        assert!(!flag.about.ends_with('.'), "{}", flag.long);
        assert!(help.contains(&flag.usage()), "{}", flag.long);
        names.push(flag.long);
        names.extend(flag.short);
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(help.lines().all(|line| line.len() <= 100), "{help}");
}
