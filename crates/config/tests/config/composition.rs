//! What composition offers beyond Hydra's recorded cases: TOML, origins, leniency, Hydra's own
//! settings, and what it tells about itself.

use schemars::JsonSchema;
use serde::Deserialize;
use tt_config::{Composition, Missing, Node, Ordered, Part, Value};

use crate::support::Tree;

const YAML_TREE: &[(&str, &str)] = &[
    (
        "default.yaml",
        "defaults:\n  - model: small\n  - optional extra: none\n  - _self_\nlr: 1e-3\nmodel:\n  lr: ${lr}\n",
    ),
    (
        "model/small.yaml",
        "defaults:\n  - act@inner: gelu\n  - _self_\nwidth: 8\nmesh: {fsdp: -1}\nstages:\n  - {name: warm, steps: 10}\n  - {name: main, steps: 100}\n",
    ),
    ("model/act/gelu.yaml", "fn: gelu\n"),
    (
        "preset/quick.yaml",
        "# @package _global_\ndefaults:\n  - override /model: large\nlr: 5e-5\n",
    ),
    ("model/large.yaml", "width: 64\n"),
];

const TOML_TREE: &[(&str, &str)] = &[
    (
        "default.toml",
        "defaults = [{model = \"small\"}, {\"optional extra\" = \"none\"}, \"_self_\"]\nlr = 1e-3\nmodel.lr = \"${lr}\"\n",
    ),
    (
        "model/small.toml",
        "defaults = [{\"act@inner\" = \"gelu\"}, \"_self_\"]\nwidth = 8\n[mesh]\nfsdp = -1\n[[stages]]\nname = \"warm\"\nsteps = 10\n[[stages]]\nname = \"main\"\nsteps = 100\n",
    ),
    ("model/act/gelu.toml", "fn = \"gelu\"\n"),
    (
        "preset/quick.toml",
        "package = \"_global_\"\nlr = 5e-5\ndefaults = [{\"override /model\" = \"large\"}]\n",
    ),
    (
        "model/large.toml",
        "# a header may also be a comment, but not after one\nwidth = 64\n",
    ),
];

fn compose(files: &[(&str, &str)], arguments: &[&str]) -> Composition {
    let tree = Tree::new(files);
    match tree.composer().compose(arguments) {
        Ok(composition) => composition,
        Err(problems) => panic!("{problems}"),
    }
}

fn yaml(composition: &Composition) -> String {
    match composition.resolve(Missing::Refuse) {
        Ok(node) => node.to_yaml(),
        Err(problems) => panic!("{problems}"),
    }
}

fn origin(composition: &Composition, path: &str) -> String {
    composition.get(path).expect(path).origin.to_string()
}

#[test]
fn toml_composes_like_yaml() {
    for arguments in [
        vec![],
        vec!["+preset=quick"],
        vec!["model=large", "model.width=3"],
    ] {
        let from_yaml = yaml(&compose(YAML_TREE, &arguments));
        assert_eq!(
            from_yaml,
            yaml(&compose(TOML_TREE, &arguments)),
            "{arguments:?}"
        );
        // Every mixture of the two.
        for pick in 0..1 << YAML_TREE.len() {
            let mixed: Vec<(&str, &str)> = (0..YAML_TREE.len())
                .map(|at| {
                    if pick >> at & 1 == 0 {
                        YAML_TREE[at]
                    } else {
                        TOML_TREE[at]
                    }
                })
                .collect();
            assert_eq!(from_yaml, yaml(&compose(&mixed, &arguments)), "{pick}");
        }
    }
}

#[test]
fn toml_types_are_kept_and_dates_are_text() {
    let toml = "i = 1\nf = 1.0\nt = \"1\"\nb = true\nd = 2024-01-05\nx = 0x1F\ninf = inf\ndotted.a.b = 1\n\"quoted.key\" = {c = [1, 2.5]}\n";
    let expected = "i: 1\nf: 1.0\nt: '1'\nb: true\nd: 2024-01-05\nx: 31\ninf: .inf\ndotted:\n  a:\n    b: 1\nquoted.key:\n  c:\n  - 1\n  - 2.5\n";
    assert_eq!(yaml(&compose(&[("default.toml", toml)], &[])), expected);
}

#[test]
fn toml_values_know_their_place() {
    let composition = compose(TOML_TREE, &[]);
    assert_eq!(origin(&composition, "lr"), "configs/default.toml:2:6");
    assert_eq!(
        origin(&composition, "model.width"),
        "configs/model/small.toml:2:9"
    );
    assert_eq!(
        origin(&composition, "model.stages.1.steps"),
        "configs/model/small.toml:10:9"
    );
}

#[test]
fn every_value_knows_what_set_it() {
    let composition = compose(
        YAML_TREE,
        &[
            "+preset=quick",
            "model.width=${oc.env:TT_STEPS}",
            "++a.b=[1,{c: 2}]",
        ],
    );
    assert_eq!(origin(&composition, "lr"), "configs/preset/quick.yaml:4:5");
    assert_eq!(origin(&composition, "model.lr"), "configs/default.yaml:7:7");
    assert_eq!(origin(&composition, "a.b.1.c"), "argument ++a.b=[1,{c: 2}]");
    assert_eq!(
        origin(&composition, "hydra.output_subdir"),
        "hydra/config.yaml:16:16"
    );
    assert_eq!(origin(&composition, "hydra.runtime.version"), "default");
    let width = composition
        .resolved("model.width", Missing::Keep)
        .expect("it resolves");
    assert_eq!(width.origin.to_string(), "environment variable TT_STEPS");
    let lr = composition
        .resolved("model.lr", Missing::Keep)
        .expect("it resolves");
    assert_eq!(lr.origin.to_string(), "configs/preset/quick.yaml:4:5");
    let site = lr
        .origin
        .read_at
        .expect("it was read through an interpolation");
    assert_eq!(site.to_string(), "configs/default.yaml:7:7");
}

#[test]
fn chain_of_choices_leads_to_the_command_line() {
    let composition = compose(YAML_TREE, &["+preset=quick"]);
    let large = &composition.get("model.width").expect("it is there").origin;
    assert_eq!(
        large.choices(),
        [
            "chosen by `override /model: large` at configs/preset/quick.yaml:3",
            "chosen by `+preset=quick` on the command line",
        ]
    );
}

#[test]
fn lenient_groups_select_whether_listed_or_not() {
    let tree = Tree::new(YAML_TREE);
    let lenient = tree.composer().lenient_groups(true);
    let strict = tree.composer();
    for (lenient_arguments, strict_arguments) in [
        (vec!["preset=quick"], vec!["+preset=quick"]),
        (vec!["+model=large"], vec!["model=large"]),
        (vec!["+model=small"], vec![]),
        (
            vec!["+model=large", "preset=quick", "lr=7"],
            vec!["model=large", "+preset=quick", "lr=7"],
        ),
        (
            vec!["model=large", "+preset=quick"],
            vec!["model=large", "+preset=quick"],
        ),
    ] {
        let a = lenient
            .compose(&lenient_arguments)
            .map_err(|p| p.to_string());
        let b = strict.compose(&strict_arguments).map_err(|p| p.to_string());
        assert_eq!(
            yaml(&a.expect("lenient")),
            yaml(&b.expect("strict")),
            "{lenient_arguments:?}"
        );
        if lenient_arguments != strict_arguments {
            assert!(
                strict.compose(&lenient_arguments).is_err(),
                "{lenient_arguments:?}"
            );
        }
    }
    // Keys stay strict, and so do options.
    for arguments in [
        ["nope=1"],
        ["model=huge"],
        ["+model=huge"],
        ["~preset"],
        ["++model=large"],
    ] {
        assert!(lenient.compose(&arguments).is_err(), "{arguments:?}");
    }
}

#[test]
fn a_lenient_choice_may_come_before_the_option_that_lists_its_group() {
    let tree = Tree::new(&[
        ("default.yaml", "lr: 1\n"),
        (
            "shape/wide.yaml",
            "# @package _global_\ndefaults:\n  - /model: small\n  - _self_\nmodel:\n  width: 9\n",
        ),
        ("model/small.yaml", "name: small\nwidth: 1\n"),
        ("model/large.yaml", "name: large\nwidth: 2\n"),
    ]);
    let lenient = tree.composer().lenient_groups(true);
    for arguments in [
        ["model=large", "shape=wide"],
        ["+model=large", "shape=wide"],
        ["shape=wide", "model=large"],
    ] {
        let composed = lenient.compose(&arguments).map_err(|it| it.to_string());
        let composed = yaml(&composed.expect("composed"));
        assert_eq!(composed, "lr: 1\nmodel:\n  name: large\n  width: 9\n");
    }
}

#[test]
fn hydra_settings_work_and_can_be_overridden() {
    let composition = compose(
        YAML_TREE,
        &[
            "lr=7",
            "hydra.run.dir=out/${model.width}",
            "model=large",
            "hydra.job.name=mine",
        ],
    );
    let text = |path: &str| composition.section(path).text().expect(path);
    assert_eq!(text("hydra.run.dir"), "out/64");
    assert_eq!(text("hydra.job.name"), "mine");
    assert_eq!(text("hydra.job.config_name"), "default");
    assert_eq!(text("hydra.job.override_dirname"), "lr=7,model=large");
    assert_eq!(text("hydra.output_subdir"), ".hydra");
    assert_eq!(composition.overrides(), ["lr=7", "model=large"]);
    let list = |path: &str| composition.get(path).expect(path).to_json();
    assert_eq!(
        list("hydra.overrides.hydra"),
        serde_json::json!(["hydra.run.dir=out/${model.width}", "hydra.job.name=mine"])
    );
    assert_eq!(list("hydra.runtime.choices")["model"], "large");
    assert_eq!(list("hydra.runtime.choices")["hydra/launcher"], "basic");
    let default = compose(YAML_TREE, &[]);
    let date = default
        .section("hydra.run.dir")
        .text()
        .expect("it resolves");
    let digits: String = date
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    assert_eq!(digits, "outputs/0000-00-00/00-00-00");
    assert!(
        Tree::new(YAML_TREE)
            .composer()
            .compose(&["hydra.nope=1"])
            .is_err()
    );
}

#[test]
fn override_dirname_follows_its_settings() {
    let arguments = [
        "lr=7",
        "model=large",
        "hydra.job.config.override_dirname.exclude_keys=[lr]",
        "hydra.job.config.override_dirname.kv_sep=-",
    ];
    let composition = compose(YAML_TREE, &arguments);
    assert_eq!(
        composition
            .section("hydra.job.override_dirname")
            .text()
            .expect("it is set"),
        "model-large"
    );
}

#[test]
fn search_path_can_be_extended() {
    let files = [
        (
            "default.yaml",
            "hydra:\n  searchpath: [more]\ndefaults:\n  - model: a\n  - _self_\n",
        ),
        ("model/a.yaml", "n: a\n"),
        ("../more/model/b.yaml", "n: b\n"),
        ("../more/model/a.yaml", "n: shadowed\n"),
        ("../other/model/c.yaml", "n: c\n"),
    ];
    assert_eq!(yaml(&compose(&files, &["model=b"])), "model:\n  n: b\n");
    assert_eq!(yaml(&compose(&files, &[])), "model:\n  n: a\n");
    assert_eq!(
        yaml(&compose(&files, &["model=c", "hydra.searchpath=[other]"])),
        "model:\n  n: c\n"
    );
    let tree = Tree::new(&files);
    let composition = tree
        .composer()
        .compose(&["hydra.searchpath=[absent]"])
        .map_err(|p| p.to_string());
    let warnings = composition
        .expect("a missing directory is a warning")
        .warnings();
    assert!(warnings[0].contains("absent"), "{warnings:?}");
}

#[test]
fn embedded_files_stand_behind_files_on_disk() {
    const EMBEDDED: &[(&str, &str)] = &[
        ("default.yaml", "defaults:\n  - model: a\n"),
        ("model/a.yaml", "n: embedded\n"),
        ("model/b.yaml", "n: embedded\n"),
    ];
    let tree = Tree::new(&[("model/a.yaml", "n: disk\n")]);
    let composer = tree.composer().embedded("program", EMBEDDED);
    let yaml_of = |arguments: &[&str]| {
        yaml(
            &composer
                .compose(arguments)
                .map_err(|p| p.to_string())
                .expect("it composes"),
        )
    };
    assert_eq!(yaml_of(&[]), "model:\n  n: disk\n");
    assert_eq!(yaml_of(&["model=b"]), "model:\n  n: embedded\n");
    assert_eq!(
        composer.groups(),
        [("model".to_string(), vec!["a".to_string(), "b".to_string()])]
    );
}

#[test]
fn written_yaml_is_as_hydra_writes_it() {
    let text = "a: 1e-8\nb: ''\nc: 'true'\nd: '1_000'\ne: |\n  two\n  lines\nf: [1, {x: 2}, [3]]\ng: {}\nh: []\ni: null\nj: 'it''s'\nk: '# no comment'\nl: ${a}\nm: 5e5\n";
    let expected = "a: 1.0e-08\nb: ''\nc: 'true'\nd: '1_000'\ne: |\n  two\n  lines\nf:\n- 1\n- x: 2\n- - 3\ng: {}\nh: []\ni: null\nj: it's\nk: '# no comment'\nl: ${a}\nm: 500000.0\n";
    assert_eq!(
        compose(&[("default.yaml", text)], &[]).job().to_yaml(),
        expected
    );
}

#[test]
fn cfg_shows_parts_packages_and_resolved_values() {
    let composition = compose(YAML_TREE, &[]);
    let show = |part, package, resolve| {
        composition
            .show(part, package, resolve)
            .expect("it is there")
    };
    assert!(show(Part::Job, None, false).ends_with("  lr: ${lr}\nlr: 0.001\n"));
    assert_eq!(
        show(Part::Job, Some("model.inner"), true),
        "# @package model.inner\nfn: gelu\n"
    );
    assert!(show(Part::Hydra, None, false).starts_with("hydra:\n"));
    assert_eq!(
        show(Part::All, Some("hydra.launcher"), false),
        "# @package hydra.launcher\nn_jobs: 1\n"
    );
    assert_eq!(show(Part::Job, Some("lr"), false), "0.001\n");
    let problem = composition
        .show(Part::Job, Some("modle"), false)
        .expect_err("no such package");
    assert!(problem.to_string().contains("modle"));
}

#[test]
fn defaults_are_listed_as_hydra_lists_them() {
    let composition = compose(YAML_TREE, &["+preset=quick"]);
    let list = composition.defaults_list();
    let rows: Vec<&str> = list
        .lines()
        .skip(4)
        .filter(|row| !row.starts_with("| hydra"))
        .collect();
    assert_eq!(
        rows,
        [
            "| model/large                 | model               | False  | default      |",
            "| default                     |                     | True   | <root>       |",
            "| preset/quick                |                     | False  | default      |",
            "-----------------------------------------------------------------------------",
        ]
    );
    let tree = compose(YAML_TREE, &[]).defaults_tree();
    let expected = "  default:\n    model: small:\n      model/act@model.inner: gelu\n      _self_\n    _self_\n";
    assert!(tree.ends_with(expected), "{tree}");
}

#[test]
fn origins_are_listed_key_by_key() {
    let composition = compose(YAML_TREE, &["model=large", "lr=2"]);
    let expected = "model.width  64  configs/model/large.yaml:1:8, chosen by `model=large` on the command line\nmodel.lr     2   configs/default.yaml:7:7 -> argument lr=2\n";
    assert_eq!(composition.origins("model").expect("it is there"), expected);
}

#[test]
fn completion_offers_groups_options_and_keys() {
    let tree = Tree::new(YAML_TREE);
    let complete = |word: &str| tree.composer().complete(&["+preset=quick"], word);
    assert_eq!(complete("mo"), ["model.", "model/act=", "model="]);
    assert_eq!(complete("model=l"), ["model=large"]);
    assert_eq!(complete("+model/act="), ["+model/act=gelu"]);
    assert_eq!(
        complete("model=small,"),
        ["model=small,large", "model=small,small"]
    );
    assert_eq!(complete("model.w"), ["model.width="]);
    assert_eq!(complete("lr"), ["lr="]);
    assert!(complete("nothing").is_empty());
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sharding {
    specs: Ordered<Vec<Option<String>>>,
    #[serde(default)]
    sizes: std::collections::BTreeMap<String, u32>,
}

#[test]
fn ordered_maps_keep_the_order_of_the_file() {
    let text = "sharding:\n  specs:\n    z.*: [fsdp, null]\n    a.*: [tensor]\n    m.*: []\n";
    let composition = compose(
        &[("default.yaml", text)],
        &["+sharding.specs.b=[x]", "+sharding.sizes={b: 2, a: 1}"],
    );
    let sharding: Sharding = composition.extract("sharding").expect("it fits");
    let keys: Vec<&str> = sharding.specs.keys().map(String::as_str).collect();
    assert_eq!(keys, ["z.*", "a.*", "m.*", "b"]);
    assert_eq!(sharding.specs["z.*"], [Some("fsdp".to_string()), None]);
    assert_eq!(sharding.sizes["b"], 2);
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
struct Everything {
    #[serde(flatten)]
    common: Common,
    kind: Kind,
    seed: u64,
    ratio: f32,
    maybe: Option<bool>,
    any: serde_json::Value,
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
struct Common {
    lr: f64,
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
#[serde(untagged)]
enum Kind {
    Name(String),
    Sizes(Vec<u8>),
}

#[test]
fn typed_configs_of_many_forms_are_filled() {
    let text = "x:\n  lr: 1\n  kind: [1, 2]\n  seed: 18446744073709551615\n  ratio: 0.5\n  maybe: null\n  any: {deep: [1, text, null]}\n";
    let everything: Everything = compose(&[("default.yaml", text)], &["x.maybe=true"])
        .extract("x")
        .map_err(|p| p.to_string())
        .expect("it fits");
    let expected = Everything {
        common: Common { lr: 1.0 },
        kind: Kind::Sizes(vec![1, 2]),
        seed: u64::MAX,
        ratio: 0.5,
        maybe: Some(true),
        any: serde_json::json!({"deep": [1, "text", null]}),
    };
    assert_eq!(everything, expected);
    for wrong in [
        "x.kind=true",
        "x.kind=[300]",
        "x.seed=-1",
        "+x.more=1",
        "x.lr=a",
    ] {
        let result = compose(&[("default.yaml", text)], &[wrong]).extract::<Everything>("x");
        assert!(result.is_err(), "{wrong}");
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Checked {
    #[serde(deserialize_with = "even")]
    n: u32,
}

fn even<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        n if n % 2 == 0 => Ok(n),
        n => Err(serde::de::Error::custom(format!("{n} is odd"))),
    }
}

#[test]
fn what_only_serde_refuses_has_its_place_too() {
    let composition = compose(&[("default.yaml", "a:\n  b: {n: 3}\n")], &[]);
    let problems = composition
        .extract::<Checked>("a.b")
        .expect_err("3 is odd")
        .to_string();
    assert!(
        problems.starts_with("error: `a.b.n`: 3 is odd\n  --> configs/default.yaml:2:10\n"),
        "{problems}"
    );
}

#[test]
fn merging_into_an_interpolation_copies_what_it_refers_to() {
    let files = [
        (
            "default.yaml",
            "defaults:\n  - base\n  - _self_\nsecond: {lr: 5}\n",
        ),
        (
            "base.yaml",
            "first: {lr: 1, eps: 2}\nsecond: ${first}\nlate: ${absent}\n",
        ),
    ];
    let composition = compose(&files, &["second.eps=7", "late={}"]);
    assert_eq!(
        yaml(&composition),
        "first:\n  lr: 1\n  eps: 2\nsecond:\n  lr: 5\n  eps: 7\nlate: {}\n"
    );
}

#[test]
fn values_set_by_the_program_are_seen_by_interpolations() {
    let mut composition = compose(
        &[("default.yaml", "log: ${hydra:runtime.output_dir}/log\n")],
        &[],
    );
    assert!(composition.resolve(Missing::Keep).is_err());
    composition.set("hydra.runtime.output_dir", Value::Str("/run".to_string()));
    assert_eq!(yaml(&composition), "log: /run/log\n");
}

#[test]
fn sweeps_expand_to_jobs_that_compose() {
    let files = [
        (
            "default.yaml",
            "lr: 1\nname: x\nhydra:\n  sweeper:\n    params:\n      lr: 1,2\n",
        ),
        ("model/a.yaml", "n: a\n"),
        ("model/b.yaml", "n: b\n"),
    ];
    let tree = Tree::new(&files);
    let jobs = |arguments: &[&str]| -> Vec<String> {
        let jobs = tree.composer().sweep(arguments).map_err(|p| p.to_string());
        let jobs = jobs.expect("it expands");
        jobs.iter().map(|job| job.overrides.join(" ")).collect()
    };
    // The parameters in the configuration come first; the command line replaces them.
    assert_eq!(
        jobs(&["+model=glob(*)", "hydra.job.name=swept"]),
        [
            "lr=1 +model=a",
            "lr=1 +model=b",
            "lr=2 +model=a",
            "lr=2 +model=b"
        ]
    );
    assert_eq!(jobs(&["lr=7"]), ["lr=7"]);
    assert_eq!(
        jobs(&["lr=3", "name='a b',\"it's\",e\\,f"]),
        ["lr=3 name='a b'", "lr=3 name='it\\'s'", "lr=3 name=e\\,f"]
    );
    // An option of a group that is swept over and has no choice of its own.
    assert_eq!(
        jobs(&["lr=1", "+model=a,b", "model.n=c"]),
        ["lr=1 +model=a model.n=c", "lr=1 +model=b model.n=c"]
    );
    for wrong in [
        &["hydra.job.name=a,b"][..],
        &["lr=range(5,1)"],
        &["+model=glob(z*)"],
        &["model=a,b"],
        &["+model=a,b", "model.m=c"],
        &["+model=a,b", "hydra.nothing=1"],
    ] {
        assert!(tree.composer().sweep(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn recorded_configs_are_read_and_compared() {
    let tree = Tree::new(&[
        (
            "a.yaml",
            "lr: 1\nbetas: [0.9, 0.95]\nmodel: {type: x, width: 8}\ngone: null\n",
        ),
        (
            "b.toml",
            "lr = 1.0\nbetas = [0.9, 0.99]\nnew = true\n[model]\ntype = \"x\"\nwidth = 8\n",
        ),
    ]);
    let read = |name: &str| Node::read(&tree.path().join("configs").join(name)).expect(name);
    let shown: Vec<String> = read("a.yaml")
        .differences(&read("b.toml"))
        .iter()
        .map(|difference| {
            let show = |side: &Option<Node>| match side {
                Some(node) => node.to_json().to_string(),
                None => "absent".to_string(),
            };
            let (left, right) = (show(&difference.left), show(&difference.right));
            format!("{}: {left} -> {right}", difference.path)
        })
        .collect();
    let expected = [
        "lr: 1 -> 1.0",
        "betas.1: 0.95 -> 0.99",
        "gone: null -> absent",
        "new: absent -> true",
    ];
    assert_eq!(shown, expected);
    assert!(Node::read(&tree.path().join("absent.yaml")).is_err());
}

#[test]
fn compositions_can_be_shared_between_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Composition>();
    is_shared::<tt_config::Composer>();
    is_shared::<tt_config::Diagnostics>();
}
