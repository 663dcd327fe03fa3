//! Every recorded answer of Hydra 1.3 (`tests/hydra`, or the folder in `TT_HYDRA_CASES`) is given.
//!
//! The four cases marked `quirk` record accidents of the Python implementation. What is done
//! instead is in `docs/configuration-quirks.md`, and checked here.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};
use tt_config::{Composer, Composition, Missing, Node, Value};

fn folder() -> PathBuf {
    std::env::var_os("TT_HYDRA_CASES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/hydra"),
        PathBuf::from,
    )
}

/// A tree in the form of the cases: special floats as `{"$float": ...}`.
fn to_case_json(node: &Node) -> Json {
    match &node.value {
        Value::Float(value) if value.is_nan() => json!({"$float": "nan"}),
        Value::Float(value) if value.is_infinite() => {
            json!({"$float": if *value > 0.0 { "inf" } else { "-inf" }})
        }
        Value::Float(value) => json!(value),
        Value::List(items) => items.iter().map(to_case_json).collect(),
        Value::Map(map) => Json::Object(
            map.iter()
                .map(|(key, child)| (key.to_string(), to_case_json(child)))
                .collect::<Map<_, _>>(),
        ),
        _ => node.to_json(),
    }
}

/// Equal, types included; the order of keys aside.
fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => a.is_f64() == b.is_f64() && a == b,
        (Json::Array(a), Json::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Json::Object(a), Json::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

fn resolved(composition: &Composition, missing: Missing) -> Result<Json, String> {
    composition
        .resolve(missing)
        .map(|node| to_case_json(&node))
        .map_err(|problems| problems.to_string())
}

enum Answer {
    Config(Json),
    Jobs(Vec<(Vec<String>, Json)>),
    Error(String),
}

fn missing(case: &Json) -> Missing {
    match case["missing"].as_str() {
        Some("error") => Missing::Refuse,
        _ => Missing::Keep,
    }
}

fn composer(case: &Json) -> Composer {
    let text = |name: &str| case[name].as_str().unwrap_or_default();
    let variables = case["env"].as_object().cloned().unwrap_or_default();
    Composer::new(text("config_name"))
        .directory("main", folder().join("trees").join(text("tree")))
        .current_directory("<CWD>")
        .variables(
            variables
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default())),
        )
}

fn answer(case: &Json) -> Answer {
    let composer = composer(case);
    let missing = missing(case);
    let mut arguments: Vec<&str> = case["args"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .collect();
    let given = arguments.len();
    arguments.retain(|argument| !matches!(*argument, "-m" | "--multirun"));
    if arguments.len() < given {
        let jobs = match composer.sweep(&arguments) {
            Ok(jobs) => jobs,
            Err(problems) => return Answer::Error(problems.to_string()),
        };
        let mut all = Vec::new();
        for job in jobs {
            match resolved(&job.composition, missing) {
                Ok(config) => all.push((job.overrides, config)),
                Err(problems) => return Answer::Error(problems),
            }
        }
        return Answer::Jobs(all);
    }
    let composed = composer.compose(&arguments).map_err(|p| p.to_string());
    match composed.and_then(|composition| resolved(&composition, missing)) {
        Ok(config) => Answer::Config(config),
        Err(problems) => Answer::Error(problems),
    }
}

/// What is expected where Hydra's own answer is an accident.
fn in_place_of_quirk(id: &str, expect: &mut Json) {
    let job = |overrides: Json, changes: Json| {
        let mut config = json!({
            "int": 1, "float": 0.5, "str": "s", "bool": false, "list": [], "dict": {"a": 1},
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            config[key.as_str()] = value.clone();
        }
        json!({"overrides": overrides, "config": config})
    };
    match id {
        // A range of decimals has decimal values, and leaves its end out.
        "sweep-06" => {
            *expect = json!({"jobs": [
                job(json!(["float=0.1"]), json!({"float": 0.1})),
                job(json!(["float=0.2"]), json!({"float": 0.2})),
                job(json!(["float=0.3"]), json!({"float": 0.3})),
            ]});
        }
        // str() makes text, in a sweep too.
        "sweep-15" => {
            for job in expect["jobs"].as_array_mut().into_iter().flatten() {
                if job["config"]["str"] == json!(0.001) {
                    job["config"]["str"] = json!("0.001");
                    job["overrides"][2] = json!("str='0.001'");
                }
            }
        }
        // choice() takes null, as `1,null` does.
        "sweep-25" => {
            *expect = json!({"jobs": [
                job(json!(["int=1"]), json!({"int": 1})),
                job(json!(["int=null"]), json!({"int": null})),
            ]});
        }
        // A key whose value is null can be deleted.
        "trap-21" => *expect = json!({"config": {"keep": 1, "layers": [1, 2, 3]}}),
        other => panic!("{other} is a quirk that is not known here"),
    }
}

/// Overrides mean the same if there are as many, for the same keys, and composing them gives the
/// same configuration.
fn same_overrides(composer: &Composer, ours: &[String], theirs: &Json, missing: Missing) -> bool {
    let theirs: Vec<&str> = theirs
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .collect();
    let key = |text: &str| text.split('=').next().unwrap_or_default().to_string();
    let composed = |texts: &[&str]| {
        let composition = composer.compose(texts).map_err(|p| p.to_string())?;
        resolved(&composition, missing)
    };
    let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
    ours.iter()
        .map(|text| key(text))
        .eq(theirs.iter().map(|text| key(text)))
        && match (composed(&ours), composed(&theirs)) {
            (Ok(ours), Ok(theirs)) => same(&ours, &theirs),
            _ => false,
        }
}

/// What is wrong with an answer; `None` if it is right.
fn judge(case: &Json, expect: &Json, answer: Answer) -> Option<String> {
    let composer = composer(case);
    let any_order = case["any_order"].as_bool().unwrap_or(false);
    match answer {
        Answer::Config(config) => match expect.get("config") {
            Some(wanted) if same(wanted, &config) => None,
            _ => Some(format!("expected {expect}\n     got {config}")),
        },
        Answer::Jobs(jobs) => {
            let Some(wanted) = expect["jobs"].as_array() else {
                return Some(format!("expected {expect}\n     got {} jobs", jobs.len()));
            };
            let matches = |job: &(Vec<String>, Json), wanted: &Json| {
                same(&wanted["config"], &job.1)
                    && same_overrides(&composer, &job.0, &wanted["overrides"], missing(case))
            };
            let right = jobs.len() == wanted.len()
                && if any_order {
                    wanted
                        .iter()
                        .all(|w| jobs.iter().any(|job| matches(job, w)))
                } else {
                    jobs.iter().zip(wanted).all(|(job, w)| matches(job, w))
                };
            let list =
                |(overrides, config): &(Vec<String>, Json)| format!("{overrides:?} {config}");
            (!right).then(|| {
                let got: Vec<String> = jobs.iter().map(list).collect();
                format!("expected {expect}\n     got {}", got.join("\n         "))
            })
        }
        Answer::Error(message) => {
            let Some(facts) = expect["error"]["contains"].as_array() else {
                return Some(format!("expected {expect}\n     got the error:\n{message}"));
            };
            let lower = message.to_lowercase();
            let lacking: Vec<&str> = facts
                .iter()
                .filter_map(Json::as_str)
                .filter(|fact| !lower.contains(&fact.to_lowercase()))
                .collect();
            (!lacking.is_empty()).then(|| format!("the error lacks {lacking:?}:\n{message}"))
        }
    }
}

#[test]
fn every_recorded_case_of_hydra_is_answered_alike() {
    let path = folder().join("cases.jsonl");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let cases: Vec<Json> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).expect("a case is one JSON object"))
        .collect();
    let mut failures = Vec::new();
    for case in &cases {
        let id = case["id"].as_str().unwrap_or_default();
        let mut expect = case["expect"].clone();
        if case["quirk"].as_bool().unwrap_or(false) {
            in_place_of_quirk(id, &mut expect);
        }
        if let Some(failure) = judge(case, &expect, answer(case)) {
            failures.push(format!("{id} {}: {failure}", case["args"]));
        }
    }
    // Not println!, which the test harness hides when the test passes.
    let _ = writeln!(std::io::stdout(), "{} cases", cases.len());
    assert!(
        failures.is_empty(),
        "{} of {} cases differ:\n\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n\n")
    );
    assert!(cases.len() >= 208, "only {} cases were found", cases.len());
}
