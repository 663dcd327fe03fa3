//! Recorded answers of Hydra 1.3, through the binary: `--cfg job --resolve` prints the config that Hydra composes.
//!
//! The composition library runs every case (`tt-config`, test `conformance`); here it is the way there and back that
//! is tested: flags, the environment, printed YAML. Sweeps and errors have tests of their own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tt_config::Node;

use crate::harness::Place;

#[test]
fn the_binary_prints_what_hydra_composes() {
    let folder = std::env::var_os("TT_HYDRA_CASES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hydra"),
        PathBuf::from,
    );
    let cases = std::fs::read_to_string(folder.join("cases.jsonl")).expect("cases");
    let mut features = BTreeSet::new();
    let mut count = 0;
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).expect("a case a line");
        let expected = &case["expect"]["config"];
        // Special floats have no JSON to compare; a case that demands every value is about the library's answer.
        let is_special = expected.to_string().contains("$float") || case.get("missing").is_some();
        // A plain value under the name of a group: the binary's leniency reads it as a choice of that group.
        let is_lenient = case["id"] == "struct-07";
        if expected.is_null() || is_special || is_lenient || case.get("quirk").is_some() {
            continue;
        }
        let (ours, expected) = (printed(&folder, &case), expected.clone());
        assert_eq!(ours, expected, "case {}", case["id"]);
        features.insert(case["features"][0].to_string());
        count += 1;
    }
    println!("{count} cases of {} features", features.len());
    assert!(count >= 90 && features.len() >= 9, "{count} {features:?}");
}

/// What the binary prints for a case, read back.
fn printed(folder: &Path, case: &Value) -> Value {
    let place = Place::new();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let tree = folder.join("trees").join(text(&case["tree"]));
    let mut args = vec![
        format!("--config-path={}", tree.display()),
        format!("--config-name={}", text(&case["config_name"])),
        "--cfg=job".to_owned(),
        "--resolve".to_owned(),
    ];
    args.extend(case["args"].as_array().expect("a list").iter().map(text));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = place.command(&args);
    for (name, value) in case["env"].as_object().expect("a map") {
        command.env(name, text(value));
    }
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "case {}: {stderr}", case["id"]);
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let path = place.write("printed.yaml", &stdout);
    let node = Node::read(&path).unwrap_or_else(|error| panic!("case {}: {error}", case["id"]));
    let here = place.path().canonicalize().expect("there");
    let json = node.to_json().to_string();
    let json = json.replace(&here.display().to_string(), "<CWD>");
    serde_json::from_str(&json).expect("JSON still")
}
