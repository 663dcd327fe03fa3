//! `trainer=dpo|ipo|simpo|orpo`: what its reference model is, that it stays that, and that preferences are learned.

use serde_json::Value;

use crate::harness::{Finished, Place, RunFolder, Running};

/// Pairs that a debug build steps through in milliseconds, twice over in twenty steps.
pub const PAIRS: &[&str] = &[
    "+model=qwen2",
    "model/size=nano",
    "data=stories_pairs",
    "data.dataset.kwargs.num_pairs=40",
    "data.sequence_length=64",
    "data.num_val_blocks=6",
    "trainer.global_batch_size=4",
    "trainer.micro_batch_size=2",
    "trainer.max_steps=20",
    "trainer.checkpoint_interval=3",
    "trainer.eval_interval=5",
    "trainer.lr_scheduler.num_warmup_steps=2",
    "lr=2e-3",
];

/// Every way to have a reference model, and an objective that needs none.
pub const KINDS: [(&str, &[&str]); 6] = [
    ("copy", &["+trainer=dpo"]),
    (
        "copy-bf16",
        &["+trainer=ipo", "trainer.kwargs.reference_dtype=bf16"],
    ),
    (
        "precomputed",
        &["+trainer=dpo", "trainer.kwargs.reference=precomputed"],
    ),
    ("adapter-off", &["+trainer=dpo", "model/adapter=lora"]),
    (
        "adapter-copy",
        &[
            "+trainer=dpo",
            "model/adapter=lora",
            "trainer.kwargs.reference=copy",
        ],
    ),
    ("orpo", &["+trainer=orpo"]),
];

pub fn arguments<'a>(kind: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [PAIRS, kind, more].concat()
}

fn run(place: &Place, kind: &[&str], dir: &str, more: &[&str]) -> (Finished, RunFolder) {
    let dir_arg = format!("hydra.run.dir={dir}");
    let mut args = arguments(kind, more);
    args.push(&dir_arg);
    let finished = place.run(&args);
    (finished, RunFolder(place.path().join(dir)))
}

fn numbers(run: &RunFolder, key: &str) -> Vec<f64> {
    let rows = run.rows();
    rows.iter().filter_map(|row| row[key].as_f64()).collect()
}

const COPY: &[&str] = KINDS[0].1;
const PRECOMPUTED: &[&str] = KINDS[2].1;

/// The initial model by whichever way: nothing has been learned at the first step, and then all learn the same.
#[test]
fn all_ways_to_have_a_reference_learn_the_same() {
    let place = Place::new();
    let losses = |kind: &[&str], dir: &str| {
        let (finished, run) = run(&place, kind, dir, &[]);
        finished.with_code(0);
        let losses = numbers(&run, "loss");
        assert_eq!(losses.len(), 20);
        let first = losses[0];
        assert!(
            (first - std::f64::consts::LN_2).abs() < 1e-6,
            "{dir}: {first}"
        );
        // Validation tells the objective beside the cross-entropy, and all that is logged of pairs.
        for key in [
            "val_objective",
            "val_rewards/accuracies",
            "val_logps/chosen",
            "val_lengths/rejected",
        ] {
            assert!(!numbers(&run, key).is_empty(), "{key}");
        }
        assert!(numbers(&run, "rewards/margins").last() > Some(&0.0));
        losses
    };
    let close = |a: &[f64], b: &[f64], what: &str| {
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() < 1e-5, "{what}: {a} {b}");
        }
    };
    let [copy, precomputed] =
        [(COPY, "copy"), (PRECOMPUTED, "precomputed")].map(|(kind, dir)| losses(kind, dir));
    close(&copy, &precomputed, "computed ahead");
    let [off, adapter_copy] = [3, 4].map(|i| losses(KINDS[i].1, KINDS[i].0));
    close(&off, &adapter_copy, "adapter off");
    assert_ne!(copy, off);

    // Of a model alone it is not known what it was before its first step; its loss of the answers is.
    let alone = RunFolder(place.path().join("copy")).final_checkpoint();
    place
        .run(&[
            "export",
            &format!("checkpoint={}", alone.display()),
            "out=alone",
        ])
        .with_code(0);
    let pairs = [
        "data=stories_pairs",
        "data.sequence_length=64",
        "trainer=dpo",
    ];
    place
        .run(&[&["eval", "checkpoint=alone"], &pairs[..]].concat())
        .with_code(2)
        .complains("trainer=lm tells the loss of the answers");
    place
        .run(&["eval", "checkpoint=copy", "trainer=lm"])
        .with_code(0)
        .prints("validation");
}

#[test]
fn log_probabilities_computed_ahead_are_kept_and_computed_again_where_damaged() {
    let place = Place::new();
    let cache = place.path().join("cache");
    let start = |dir: &str| {
        let dir_arg = format!("hydra.run.dir={dir}");
        let mut command =
            place.command(&arguments(PRECOMPUTED, &[&dir_arg, "trainer.max_steps=2"]));
        command.env("XDG_CACHE_HOME", &cache);
        Running::start(command).finish().with_code(0)
    };
    start("first").prints("92 answers, 92 of them computed now");
    start("second").prints("92 answers, 0 of them computed now");
    let mut folders = crate::harness::entries(&cache.join("tpu-train/reference"));
    let folder = folders.pop().expect("a cache");
    let file = crate::harness::entries(&folder).pop().expect("a file");
    let mut bytes = std::fs::read(&file).expect("read");
    bytes[20] ^= 1;
    std::fs::write(&file, bytes).expect("written");
    start("third").prints("92 answers, 92 of them computed now");
    let rows = |dir: &str| RunFolder(place.path().join(dir)).timeless_rows();
    assert_eq!(rows("first"), rows("second"));
    assert_eq!(rows("first"), rows("third"));
}

/// The weights to start from are another model by the time that the run goes on.
#[test]
fn a_reference_that_has_changed_is_refused() {
    let place = Place::new();
    for (dir, seed) in [("a", "seed=1"), ("b", "seed=2")] {
        let (finished, _) = run(
            &place,
            &["+trainer=orpo"],
            dir,
            &[seed, "trainer.max_steps=1"],
        );
        finished.with_code(0);
        let out = format!("out=base-{dir}");
        let checkpoint = format!("checkpoint={dir}");
        place.run(&["export", &checkpoint, &out]).with_code(0);
    }
    std::fs::rename(place.path().join("base-a"), place.path().join("base")).expect("renamed");
    let on_base = |steps| [steps, "model.pretrained_url=base"];
    for kind in [COPY, PRECOMPUTED] {
        let dir = if kind == COPY { "copy" } else { "ahead" };
        run(&place, kind, dir, &on_base("trainer.max_steps=2"))
            .0
            .with_code(0);
        run(&place, kind, dir, &on_base("trainer.max_steps=3"))
            .0
            .with_code(0);
    }
    std::fs::remove_dir_all(place.path().join("base")).expect("removed");
    std::fs::rename(place.path().join("base-b"), place.path().join("base")).expect("renamed");
    for (kind, dir) in [(COPY, "copy"), (PRECOMPUTED, "ahead")] {
        let (refused, _) = run(&place, kind, dir, &on_base("trainer.max_steps=4"));
        refused.with_code(2).complains("another reference model");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_the_first_step() {
    let place = Place::new();
    let cases: [(&[&str], &[&str], &str); 6] = [
        (
            COPY,
            &[
                "data.collator.type=packing.PackingCollator",
                "+data.collator.kwargs={field: chosen}",
            ],
            "its rows are no pairs",
        ),
        (
            &["+trainer=ipo"],
            &["+trainer.kwargs.label_smoothing=0.1"],
            "IPO has no label smoothing",
        ),
        (
            COPY,
            &["+trainer.kwargs.gamma=1"],
            "DPO has no margin gamma",
        ),
        (
            &["+trainer=orpo"],
            &["+trainer.kwargs.reference=copy"],
            "ORPO compares with no reference model",
        ),
        (
            COPY,
            &["trainer.kwargs.reference=adapter_off"],
            "no adapter is trained",
        ),
        (
            KINDS[3].1,
            &[
                "trainer.kwargs.reference=adapter_off",
                "model.adapter.bias=all",
            ],
            "biases of the base",
        ),
    ];
    for (kind, more, said) in cases {
        run(&place, kind, "none", more)
            .0
            .with_code(2)
            .complains(said);
    }
    // Another objective's checkpoint is where a run may begin, not a step of it: what would it be compared with?
    let (orpo, _) = run(&place, &["+trainer=orpo"], "orpo", &["trainer.max_steps=1"]);
    orpo.with_code(0);
    let (refused, _) = run(&place, COPY, "orpo", &["resume=orpo"]);
    refused
        .with_code(2)
        .complains("compares with no such reference model");
}

/// Also what is counted over all of validation (ORPO), where nothing is computed ahead, and with a copy of what the run began
/// with.
#[test]
fn eval_gives_a_runs_own_validation() {
    const AHEAD: &[&str] = &[
        "+trainer=dpo",
        "model/adapter=lora",
        "trainer.kwargs.reference=precomputed",
    ];
    let place = Place::new();
    let kinds = [
        ("orpo", KINDS[5].1),
        ("simpo", &["+trainer=simpo"]),
        ("copy", KINDS[0].1),
        ("copy-bf16", KINDS[1].1),
        ("adapter-off", KINDS[3].1),
        ("adapter-copy", KINDS[4].1),
        ("ahead", PRECOMPUTED),
        ("adapter-ahead", AHEAD),
    ];
    for (name, kind) in kinds {
        let (finished, folder) = run(&place, kind, name, &["trainer.max_steps=5"]);
        let finished = finished.with_code(0);
        assert!(
            finished.stdout.contains("\npreferences "),
            "{}",
            finished.stdout
        );
        let checkpoint = format!("checkpoint={name}");
        let looked = place.run(&["eval", "--json", &checkpoint]).with_code(0);
        let found: Value = serde_json::from_str(&looked.stdout).expect("JSON");
        let summary = folder.json("summary.json");
        let found = &found["losses"][0];
        for (ours, key) in [
            (&found["objective"], "final_val_objective"),
            (&found["loss"], "final_val_loss"),
        ] {
            let [ours, runs] =
                [ours, &summary[key]].map(|number| number.as_f64().map(|x| x as f32));
            assert!(ours.is_some());
            assert_eq!(ours, runs, "{name}: {key}");
        }
    }
}

#[test]
fn fine_tuning_on_pairs_says_that_it_learns_the_rejected_answers_too() {
    let place = Place::new();
    let (finished, _) = run(&place, &["+trainer=lm"], "lm", &["trainer.max_steps=1"]);
    let finished = finished.with_code(0);
    let said = finished.stdout + &finished.stderr;
    assert!(said.contains("the rejected answers too"), "{said}");
}

#[test]
fn a_plan_counts_the_frozen_copy() {
    let place = Place::new();
    let planned = |kind: &[&str], more: &[&str]| -> Value {
        let args = [
            &arguments(kind, more)[..],
            &["plan", "--json", "--memory=1TB"],
        ]
        .concat();
        let finished = place.run(&args).with_code(0);
        let plan: Value = serde_json::from_str(&finished.stdout).expect("JSON");
        plan["memory_bytes"].clone()
    };
    let bytes = |plan: &Value, key: &str| plan[key].as_u64().expect("bytes");
    let copy = planned(COPY, &[]);
    assert_eq!(bytes(&copy, "reference"), bytes(&copy, "weights"));
    let half = planned(COPY, &["trainer.kwargs.reference_dtype=bf16"]);
    assert!(bytes(&half, "reference") < bytes(&copy, "reference") * 6 / 10);
    assert!(bytes(&half, "peak") < bytes(&copy, "peak"));
    for kind in [PRECOMPUTED, KINDS[3].1, KINDS[5].1] {
        assert_eq!(bytes(&planned(kind, &[]), "reference"), 0, "{kind:?}");
    }
}

/// Ranks that share out the model share out the copy of it too.
#[test]
fn ranks_learn_the_same_of_their_pairs() {
    let place = Place::new();
    for (name, kind) in [KINDS[0], KINDS[3], KINDS[5]] {
        // Three micro-batches for two ranks: one runs a pair without its targets.
        let batches = [
            "trainer.global_batch_size=6",
            "trainer.max_steps=6",
            "trainer.eval_interval=3",
        ];
        let (finished, one) = run(&place, kind, &format!("{name}-one"), &batches);
        finished.with_code(0);
        let shared = [&batches[..], &["device.ranks=2", "model/sharding=zero3"]].concat();
        let (finished, two) = run(&place, kind, &format!("{name}-two"), &shared);
        finished.with_code(0);
        for key in [
            "loss",
            "grad_norm",
            "rewards/margins",
            "lengths/chosen",
            "val_objective",
        ] {
            let (expected, found) = (numbers(&one, key), numbers(&two, key));
            assert_eq!(found.len(), expected.len());
            assert!(!found.is_empty());
            for (a, b) in expected.iter().zip(found) {
                assert!(
                    (a - b).abs() < 1e-4 * a.abs().max(0.1),
                    "{name} {key}: {a} {b}"
                );
            }
        }
    }
    let (refused, _) = run(&place, PRECOMPUTED, "ahead", &["device.ranks=2"]);
    refused
        .with_code(2)
        .complains("precomputed is for one rank");
}
