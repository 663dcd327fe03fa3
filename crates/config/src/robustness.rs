//! Whatever is typed or written into a file, reading it ends, without a panic, a hang or a stack
//! overflow.
//!
//! `TT_FUZZ_CASES` sets how many random inputs each test tries (default 2,000); docs/testing.md says how a
//! million are run. Tests run on threads of 2 MB, so that runaway recursion shows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::Config;

use crate::apply::apply;
use crate::compose::Composer;
use crate::environment::Environment;
use crate::grammar;
use crate::interpolation::parse;
use crate::interpolation::resolve::Missing;
use crate::origin::{Layer, SourceFile};
use crate::value::{Map, Node, Value};
use crate::{toml, yaml};

fn config() -> Config {
    let cases = std::env::var("TT_FUZZ_CASES").ok();
    Config {
        cases: cases.and_then(|cases| cases.parse().ok()).unwrap_or(2_000),
        failure_persistence: None,
        ..Config::default()
    }
}

fn layer(text: &str) -> Arc<Layer> {
    Arc::new(Layer {
        file: Arc::new(SourceFile {
            path: "fuzz.yaml".to_string(),
            text: text.to_string(),
        }),
        chosen_by: None,
    })
}

/// Texts made of pieces that mean something to the grammars, and of any characters.
fn text(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        9 => prop::sample::select(pieces).prop_map(str::to_string),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

const OVERRIDE: &[&str] = &[
    "a",
    "b.c",
    "x/y",
    "=",
    "+",
    "~",
    "@",
    "1",
    "0x",
    "1e5",
    "-",
    ".5",
    "inf",
    "null",
    "true",
    ",",
    ":",
    " ",
    "\t",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    "'",
    "\"",
    "\\",
    "$",
    "${a}",
    "${",
    "int(",
    "str(",
    "float(",
    "bool(",
    "choice(",
    "range(",
    "sort(",
    "shuffle(",
    "tag(",
    "glob(",
    "interval(",
    "reverse=true",
    "99999999999999999999999999999999999999999",
    "é",
    "#",
    "*",
];
const YAML: &[&str] = &[
    "a",
    "b",
    ": ",
    ":",
    "\n",
    "\n  ",
    "\n    ",
    "- ",
    "-",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
    "!!str ",
    "! ",
    "|",
    ">",
    "|-\n",
    "'",
    "\"",
    "\\",
    "#",
    " #",
    "?",
    "? ",
    "---",
    "...",
    "%",
    "@",
    "`",
    "0x1",
    "1e5",
    "1:30",
    ".inf",
    "~",
    "yes",
    "\t",
    "\r\n",
    "\u{feff}",
    "é",
    "${a}",
    "???",
    "\u{85}",
    "\0",
    "99999999999999999999999999999999999999999",
];
const INTERPOLATION: &[&str] = &[
    "${",
    "}",
    "a",
    "b",
    "c",
    ".",
    "..",
    "[",
    "]",
    ":",
    ",",
    "oc.env:",
    "oc.select:",
    "oc.decode:",
    "oc.create:",
    "oc.dict.values:",
    "oc.dict.keys:",
    "hydra:",
    "now:",
    "%Y",
    "%",
    "'",
    "\"",
    "\\",
    "\\\\",
    "{",
    " ",
    "1",
    "1e5",
    "null",
    "é",
    "$",
    "l",
    "0",
    "-",
];

proptest! {
    #![proptest_config(config())]

    #[test]
    fn override_grammar_reads_anything(argument in text(OVERRIDE)) {
        if let Ok(parsed) = grammar::parse(&argument) {
            let environment = Environment::process().with_variables(Default::default());
            let layer = layer("a: {b: 1, c: [1, {d: 2}]}\nb: {c: {}}\n");
            let mut root = yaml::read(&layer).expect("this is valid");
            let _ = apply(&mut root, &parsed, &environment);
            if let (Some(value), Some(node)) = (&parsed.value, parsed.node()) {
                // What a sweep writes for a job reads back as the same value.
                let written = format!("k={}", grammar::write::element(value));
                let again = grammar::parse(&written).expect(&written);
                prop_assert_eq!(again.node(), Some(node), "{}", written);
            }
        }
    }

    #[test]
    fn yaml_reader_reads_anything(text in text(YAML)) {
        if let Ok(node) = yaml::read(&layer(&text)) {
            let written = node.to_yaml();
            let again = yaml::read(&layer(&written)).map_err(|e| e.to_string());
            prop_assert_eq!(again.as_ref(), Ok(&node), "{}", written);
        }
    }

    #[test]
    fn toml_reader_reads_anything(text in text(YAML)) {
        let _ = toml::read(&layer(&text));
    }

    #[test]
    fn interpolations_are_read_and_resolved_whatever_they_say(
        first in text(INTERPOLATION),
        second in text(INTERPOLATION),
    ) {
        let _ = parse::template(&first);
        let _ = parse::element(&first);
        let layer = layer("b: {c: 1, l: [1, '${a}']}\n");
        let mut root = yaml::read(&layer).expect("this is valid");
        if let Value::Map(map) = &mut root.value {
            map.insert("a".into(), Node::built_in(Value::Str(first)));
            map.insert("c".into(), Node::built_in(Value::Str(second)));
        }
        let environment = Environment::process().with_variables(Default::default());
        let resolver = crate::interpolation::resolve::Resolver::new(&root, &environment);
        let _ = resolver.tree(&Vec::new(), Missing::Keep);
    }
}

/// Runs `work`, which must end; the limit is for a machine that is busy with other things.
fn in_time(what: &str, work: impl FnOnce()) {
    let start = Instant::now();
    work();
    let taken = start.elapsed();
    assert!(taken < Duration::from_secs(180), "{what} took {taken:?}");
}

#[test]
fn deep_nesting_is_refused() {
    for open in ["[", "{", "{a: ", "- ", "? ", "[[{a: "] {
        in_time(open, || {
            let text = open.repeat(100_000);
            assert!(yaml::read(&layer(&text)).is_err(), "{open}");
        });
    }
    let block: String = (0..2_000)
        .map(|depth| format!("{}a:\n", " ".repeat(depth)))
        .collect();
    assert!(yaml::read(&layer(&block)).is_err());
    for open in ["[", "{a:", "int(", "[{a:", "sort([", "${"] {
        in_time(open, || {
            let argument = format!("k={}", open.repeat(100_000));
            assert!(grammar::parse(&argument).is_err(), "{open}");
        });
    }
    for open in ["${", "${a:", "${a.${", "${oc.decode:'", "${a:[", "${a:{b:"] {
        in_time(open, || {
            assert!(parse::template(&open.repeat(100_000)).is_err(), "{open}");
        });
    }
    assert!(toml::read(&layer(&format!("a = {}", "[".repeat(100_000)))).is_err());
    let path = format!("+{}=1", vec!["a"; 100_000].join("."));
    assert!(compose("a: 1\n", &[&path]).is_err());
}

#[test]
fn deepest_allowed_nesting_works() {
    let depth = yaml::MAX_DEPTH - 2;
    let text = format!("a: {}{}\nb: ${{a}}\n", "[".repeat(depth), "]".repeat(depth));
    let node = compose(&text, &[]).expect("this depth is allowed");
    assert!(node.get("b").is_some());
}

#[test]
fn long_lists_and_huge_numbers_are_read_or_refused() {
    in_time("a long flow list", || {
        let text = format!("a: [{}]", vec!["1"; 100_000].join(", "));
        let node = yaml::read(&layer(&text)).expect("this is allowed");
        assert_eq!(
            node.get("a").and_then(Node::as_list).map(<[Node]>::len),
            Some(100_000)
        );
    });
    in_time("a longer block list", || {
        assert!(yaml::read(&layer(&"- 1\n".repeat(1_000_000))).is_err());
    });
    in_time("a long argument", || {
        let argument = format!("a=[{}]", vec!["1"; 100_000].join(","));
        assert!(grammar::parse(&argument).is_ok());
    });
    let digits = "9".repeat(100_000);
    assert!(yaml::read(&layer(&format!("a: {digits}"))).is_err());
    assert!(grammar::parse(&format!("a={digits}")).is_err());
    assert!(grammar::parse(&format!("a=int({digits})")).is_err());
    assert!(parse::template(&format!("${{a:{digits}}}")).is_err());
    for sweep in [
        "range(0,1e300)",
        "range(999999999999999999)",
        "range(0,1,1e-300)",
    ] {
        in_time(sweep, || {
            let composer = Composer::new("default").embedded("main", &[("default.yaml", "a: 1\n")]);
            assert!(composer.sweep(&[format!("a={sweep}")]).is_err(), "{sweep}");
        });
    }
}

#[test]
fn anchors_cannot_multiply_without_end() {
    let cycle = yaml::read(&layer("a: &a {b: *a}\n"));
    assert!(cycle.is_err());
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..30 {
        let before = format!("*a{}", level - 1);
        let list = [before.as_str(); 10].join(", ");
        laughs += &format!("a{level}: &a{level} [{list}]\n");
    }
    in_time("aliases of aliases", || {
        assert!(yaml::read(&layer(&laughs)).is_err())
    });
}

#[test]
fn interpolations_cannot_multiply_without_end() {
    for (first, pattern) in [("''", "'{}{}'"), ("x", "'{}{}'"), ("[x, x]", "[{}, {}]")] {
        let mut text = format!("a0: {first}\n");
        for level in 1..100 {
            let before = format!("${{a{}}}", level - 1);
            let value = pattern.replace("{}", &format!("\u{1}{before}\u{1}"));
            let value = if pattern.starts_with('[') {
                value.replace('\u{1}', "'")
            } else {
                value.replace('\u{1}', "")
            };
            text += &format!("a{level}: {value}\n");
        }
        in_time(pattern, || {
            assert!(compose(&text, &[]).is_err(), "{pattern}")
        });
    }
}

#[test]
fn long_chains_of_interpolations_end() {
    for value in ["${a{}}", "{x: '${a{}}'}", "'${oc.select:${oc.select:s{}}}'"] {
        let mut text = String::new();
        for level in 0..500 {
            let next = (level + 1).to_string();
            text += &format!(
                "a{level}: {}\ns{level}: a{next}\n",
                value.replace("{}", &next)
            );
        }
        in_time(value, || {
            let _ = compose(&format!("{text}a500: 1\ns501: 1\n"), &[]);
        });
    }
}

fn compose(text: &str, arguments: &[&str]) -> Result<Node, crate::Diagnostics> {
    let files: &'static [(&'static str, &'static str)] = Box::leak(Box::new([(
        "default.yaml",
        &*Box::leak(text.to_string().into_boxed_str()),
    )]));
    Composer::new("default")
        .embedded("main", files)
        .compose(arguments)?
        .resolve(Missing::Keep)
}

#[test]
fn empty_tree_is_written_and_read() {
    let node = Node::built_in(Value::Map(Map::new()));
    assert_eq!(node.to_yaml(), "{}\n");
}
