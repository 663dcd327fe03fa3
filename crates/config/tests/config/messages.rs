//! The text of every error message, as the user sees it.
//!
//! Each case has its expected text in `tests/config/snapshots`. After a deliberate change, run with
//! `TT_UPDATE_SNAPSHOTS=1` and read the difference.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use tt_config::{Composition, Diagnostics, Entry, Missing, Section, Table};

use crate::support::Tree;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct Trainer {
    #[serde(default)]
    max_steps: u64,
    #[serde(default)]
    precision: Precision,
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(default)]
    dropout: f64,
    #[serde(default)]
    betas: Option<(f64, f64)>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    schedule: Option<Schedule>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Precision {
    #[default]
    F32,
    Bf16,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
#[allow(dead_code)]
enum Schedule {
    Constant,
    Cosine { min_lr_ratio: f64 },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct AdamWConfig {
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
}

type Build = fn(&Section<'_>) -> Result<(), Diagnostics>;

const OPTIMIZERS: Table<Build> = Table::new(
    "optimizer",
    &[
        Entry::new::<AdamWConfig>(
            "adamw.AdamW",
            "Adam with decoupled weight decay",
            |kwargs| kwargs.extract::<AdamWConfig>().map(|_| ()),
        ),
        Entry::new::<AdamWConfig>("lion.Lion", "signs of momentum", |_| Ok(())),
    ],
);

fn optimizer(composition: &Composition) -> Result<(), Diagnostics> {
    let section = composition.section("optimizer");
    let table = OPTIMIZERS;
    let entry = table.choose(&section)?;
    let kwargs = section.section("kwargs").describe(table.subject(entry));
    (entry.build)(&kwargs)
}

fn trainer(composition: &Composition) -> Result<(), Diagnostics> {
    composition.extract::<Trainer>("trainer").map(|_| ())
}

fn resolve(composition: &Composition) -> Result<(), Diagnostics> {
    composition.resolve(Missing::Refuse).map(|_| ())
}

/// Composes, runs `then`, and compares the text of what went wrong.
fn check(
    name: &str,
    files: &[(&str, &str)],
    arguments: &[&str],
    then: fn(&Composition) -> Result<(), Diagnostics>,
) {
    let tree = Tree::new(files);
    let result = tree.composer().compose(arguments).and_then(|c| then(&c));
    compare(name, &result.expect_err("something is wrong").to_string());
}

fn compare(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/config/snapshots")
        .join(format!("{name}.txt"));
    let text = format!("{text}\n");
    if std::env::var_os("TT_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).expect("the snapshot can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == text,
        "the message differs from {}:\n{text}\nexpected:\n{expected}",
        path.display()
    );
}

const OPTIMIZER: (&str, &str) = (
    "optimizer/adamw.yaml",
    "type: adamw.AdamW\nkwargs:\n  lr: 1e-3\n  betas: [0.9, 0.95]\n  eps: 1e-8\n  weight_decay: 0.1\n",
);
const WITH_OPTIMIZER: (&str, &str) = (
    "default.yaml",
    "defaults:\n  - optimizer: adamw\n  - _self_\n\nlr: 1e-3\nseed: 1\n",
);

#[test]
fn unknown_key_points_at_its_line() {
    let adamw = "type: adamw.AdamW\nkwargs:\n  lr: 1e-3\n  betas: [0.9, 0.95]\n  eps: 1e-8\n  weight_decy: 0.1\n  weight_decay: 0\n";
    let files = [WITH_OPTIMIZER, ("optimizer/adamw.yaml", adamw)];
    check("unknown_key", &files, &[], optimizer);
}

#[test]
fn key_added_on_the_command_line_is_unknown() {
    let arguments = ["+optimizer.kwargs.momentum=0.9"];
    check(
        "unknown_key_added",
        &[WITH_OPTIMIZER, OPTIMIZER],
        &arguments,
        optimizer,
    );
}

#[test]
fn missing_key_points_at_its_mapping() {
    let arguments = ["~optimizer.kwargs.eps"];
    check(
        "missing_key",
        &[WITH_OPTIMIZER, OPTIMIZER],
        &arguments,
        optimizer,
    );
}

#[test]
fn unknown_type_lists_the_table() {
    let files = [WITH_OPTIMIZER, OPTIMIZER];
    check(
        "unknown_type",
        &files,
        &["optimizer.type=adamw.Adam"],
        optimizer,
    );
    check(
        "unknown_type_short",
        &files,
        &["optimizer.type=AdamW"],
        optimizer,
    );
    check(
        "unknown_type_list",
        &files,
        &["optimizer.type=[a]"],
        optimizer,
    );
}

#[test]
fn wrong_types_point_at_their_source() {
    let file = ("default.yaml", "trainer:\n  max_steps: ten\n");
    check("wrong_type_in_file", &[file], &[], trainer);
    check(
        "wrong_type_in_argument",
        &[file],
        &["trainer.max_steps=-5"],
        trainer,
    );
    check(
        "wrong_type_float",
        &[file],
        &["trainer.max_steps=1e5"],
        trainer,
    );
    check(
        "wrong_type_mapping",
        &[file],
        &["trainer.max_steps={a: 1}"],
        trainer,
    );
    let through = (
        "default.yaml",
        "steps: soon\ntrainer:\n  max_steps: ${steps}\n",
    );
    check(
        "wrong_type_through_interpolation",
        &[through],
        &["steps=later"],
        trainer,
    );
    let variable = (
        "default.yaml",
        "trainer:\n  max_steps: ${oc.env:TT_STEPS}\n",
    );
    check("wrong_type_in_variable", &[variable], &[], trainer);
    let text = (
        "default.yaml",
        "trainer:\n  max_steps: 1\n  name: 5\n  dropout: '0.5'\n",
    );
    check("wrong_type_quotes", &[text], &[], trainer);
}

#[test]
fn values_outside_their_range_are_refused() {
    let file = ("default.yaml", "trainer:\n  dropout: 1.5\n");
    check("out_of_range", &[file], &[], trainer);
    let file = ("default.yaml", "trainer:\n  betas: [0.9]\n");
    check("wrong_length", &[file], &[], trainer);
}

#[test]
fn unknown_options_list_the_options() {
    let file = ("default.yaml", "trainer:\n  precision: bf61\n");
    check("unknown_option", &[file], &[], trainer);
    let file = (
        "default.yaml",
        "trainer:\n  schedule: {type: cosin, min_lr_ratio: 0.1}\n",
    );
    check("unknown_variant", &[file], &[], trainer);
    let file = (
        "default.yaml",
        "trainer:\n  schedule: {type: cosine, min_lr: 0.1}\n",
    );
    check("unknown_key_of_variant", &[file], &[], trainer);
}

#[test]
fn all_problems_are_reported_in_one_run() {
    let file = "trainer:\n  max_steps: -1\n  precison: f32\n  dropout: 2\n  name: [a]\n";
    check("several_problems", &[("default.yaml", file)], &[], trainer);
}

#[test]
fn value_still_to_be_given_is_named() {
    let file = ("default.yaml", "trainer:\n  max_steps: ???\n");
    check("to_be_given", &[file], &[], trainer);
    check("to_be_given_on_resolve", &[file], &[], resolve);
}

#[test]
fn unknown_group_options_list_the_options() {
    let files = [WITH_OPTIMIZER, OPTIMIZER];
    check(
        "unknown_group_option",
        &files,
        &["optimizer=adamv"],
        resolve,
    );
    let files = [
        ("default.yaml", "defaults:\n  - optimzer: adamw\n"),
        OPTIMIZER,
    ];
    check("unknown_group_in_defaults", &files, &[], resolve);
    let files = [("default.yaml", "defaults:\n  - base_settings\n")];
    check("unknown_config_file", &files, &[], resolve);
    check(
        "unknown_primary_config",
        &[("defualt.yaml", "a: 1\n")],
        &[],
        resolve,
    );
}

#[test]
fn groups_outside_the_defaults_list_are_refused() {
    let files = [("default.yaml", "seed: 1\n"), OPTIMIZER];
    check("group_not_listed", &files, &["optimizer=adamw"], resolve);
    check("group_not_listed_deleted", &files, &["~optimizer"], resolve);
    let files = [WITH_OPTIMIZER, OPTIMIZER];
    check(
        "group_listed_already",
        &files,
        &["+optimizer=adamw"],
        resolve,
    );
    check("group_force_added", &files, &["++optimizer=adamw"], resolve);
    check("group_null", &files, &["optimizer=null"], resolve);
    let files = [
        ("default.yaml", "defaults:\n  - optimizer@teacher: adamw\n"),
        OPTIMIZER,
    ];
    check(
        "group_in_another_package",
        &files,
        &["optimizer=adamw"],
        resolve,
    );
}

#[test]
fn defaults_lists_explain_their_mistakes() {
    let late = "defaults:\n  - override optimizer: adamw\n  - optimizer: adamw\n";
    check(
        "override_before_the_end",
        &[("default.yaml", late), OPTIMIZER],
        &[],
        resolve,
    );
    let open = "defaults:\n  - optimizer: ???\n";
    check(
        "option_must_be_chosen",
        &[("default.yaml", open), OPTIMIZER],
        &[],
        resolve,
    );
    let list = [("default.yaml", "defaults: optimizer\n")];
    check("defaults_no_list", &list, &[], resolve);
    let two = [("default.yaml", "defaults:\n  - a: b\n    c: d\n")];
    check("defaults_two_keys", &two, &[], resolve);
    let cycle = [
        ("default.yaml", "defaults:\n  - a: x\n"),
        ("a/x.yaml", "defaults:\n  - y\n"),
        ("a/y.yaml", "defaults:\n  - x\n"),
    ];
    check("defaults_cycle", &cycle, &[], resolve);
    let header = [
        ("default.yaml", "defaults:\n  - a: x\n"),
        ("a/x.yaml", "# @package a b\n"),
    ];
    check("malformed_header", &header, &[], resolve);
    let both = [("default.yaml", "a: 1\n"), ("default.toml", "a = 1\n")];
    check("yaml_and_toml", &both, &[], resolve);
}

#[test]
fn value_overrides_explain_their_mistakes() {
    let files = [WITH_OPTIMIZER, OPTIMIZER];
    check(
        "unknown_key_on_command_line",
        &files,
        &["optimizer.kwargs.wieght_decay=0"],
        resolve,
    );
    check(
        "unknown_parent_on_command_line",
        &files,
        &["optimzer.kwargs.lr=1"],
        resolve,
    );
    check("added_key_exists", &files, &["+seed=2"], resolve);
    check("deleted_value_differs", &files, &["~seed=2"], resolve);
    check("deleted_key_is_absent", &files, &["~sed"], resolve);
    check(
        "index_out_of_range",
        &files,
        &["optimizer.kwargs.betas.2=1"],
        resolve,
    );
    check(
        "several_overrides",
        &files,
        &["sed=1", "+lr=2", "~x"],
        resolve,
    );
}

#[test]
fn override_syntax_errors_have_a_caret() {
    let files = [("default.yaml", "a: 1\n")];
    check("syntax_unclosed_quote", &files, &["a='open"], resolve);
    check("syntax_equals_in_value", &files, &["a=x=y"], resolve);
    check("syntax_unclosed_bracket", &files, &["a=[1,2"], resolve);
    check("syntax_no_value", &files, &["a"], resolve);
    check("syntax_unicode", &files, &["a=模型"], resolve);
    check("syntax_key", &files, &["a[0]=1"], resolve);
    check("syntax_function", &files, &["a=cube(3)"], resolve);
    check("syntax_cast", &files, &["a=int(abc)"], resolve);
    check("syntax_several", &files, &["a=[", "b={x", "c=#"], resolve);
}

#[test]
fn sweeps_need_multirun() {
    let files = [("default.yaml", "a: 1\n")];
    check("sweep_ambiguous", &files, &["a=1,2"], resolve);
    check("sweep_range", &files, &["a=range(1,4)"], resolve);
    let tree = Tree::new(&files);
    let Err(problems) = tree.composer().sweep(&["a=interval(0,1)"]) else {
        panic!("an interval cannot be enumerated");
    };
    compare("sweep_interval", &problems.to_string());
}

#[test]
fn yaml_errors_point_at_their_line() {
    let cases = [
        ("yaml_syntax", "model: {name: qwen2\nsteps: 3\n"),
        ("yaml_duplicate_key", "lr: 1\nsteps: 2\nlr: 3\n"),
        ("yaml_null_key", "milestones:\n  null: none\n"),
        ("yaml_missing_in_braces", "model: {path: ???, name: x}\n"),
        ("yaml_alias_cycle", "a: &a [1, *a]\n"),
        ("yaml_unknown_tag", "a: !!python/object x\n"),
        ("yaml_two_documents", "a: 1\n---\nb: 2\n"),
        ("yaml_tab", "a:\n\tb: 1\n"),
        ("yaml_list", "- a\n- b\n"),
    ];
    for (name, text) in cases {
        check(name, &[("default.yaml", text)], &[], resolve);
    }
    let toml = [("default.toml", "a = 1\nb = \n")];
    check("toml_syntax", &toml, &[], resolve);
    let duplicate = [("default.toml", "a = 1\na = 2\n")];
    check("toml_duplicate_key", &duplicate, &[], resolve);
}

#[test]
fn interpolation_errors_name_both_ends() {
    let cases = [
        (
            "interpolation_cycle",
            "alpha: ${beta}\nbeta: ${gamma}\ngamma: ${alpha}\n",
        ),
        (
            "interpolation_missing_key",
            "trainer:\n  lr: ${optimizer.lr}\noptimizer: {learning_rate: 1}\n",
        ),
        (
            "interpolation_relative_hint",
            "data:\n  root: /d\n  path: ${root}/x\n",
        ),
        ("interpolation_to_missing", "path: ???\nckpt: ${path}/x\n"),
        ("interpolation_variable", "bucket: ${oc.env:BUCKET}\n"),
        ("interpolation_resolver", "lr: ${oc.evn:LR}\n"),
        ("interpolation_syntax", "lr: ${oc.env:LR\n"),
        ("interpolation_above_root", "a: {b: '${....x}'}\n"),
        ("interpolation_through_scalar", "a: 1\nb: ${a.c}\n"),
        (
            "interpolation_container_cycle",
            "a: {b: '${c}'}\nc: {d: '${a}'}\n",
        ),
    ];
    for (name, text) in cases {
        check(name, &[("default.yaml", text)], &[], resolve);
    }
}

#[test]
fn mapping_and_list_do_not_merge() {
    let files = [
        ("default.yaml", "defaults:\n  - a: x\n  - _self_\na: [1]\n"),
        ("a/x.yaml", "k: 1\n"),
    ];
    check("merge_kinds", &files, &[], resolve);
}

#[test]
fn options_of_another_choice_say_where_they_come_from() {
    let inherited = [
        ("default.yaml", "defaults:\n  - optimizer: mine\n"),
        (
            "optimizer/mine.yaml",
            "defaults:\n  - other\n  - _self_\ntype: adamw.AdamW\n",
        ),
        (
            "optimizer/other.yaml",
            "type: sgd.Sgd\nkwargs:\n  lr: 1\n  betas: [0.9, 0.95]\n  eps: 1e-8\n  weight_decay: 0.1\n  momentum: 0.9\n",
        ),
    ];
    check("inherited_option", &inherited, &[], optimizer);
}

#[test]
fn chain_of_choices_is_shown() {
    let files = [
        ("default.yaml", "defaults:\n  - trainer: lm\n"),
        (
            "trainer/lm.yaml",
            "defaults:\n  - optimizer: adamw\n  - _self_\nmax_steps: 5\n",
        ),
        ("trainer/optimizer/adamw.yaml", "beta: ${nope}\n"),
    ];
    check("chain_of_choices", &files, &[], resolve);
}
