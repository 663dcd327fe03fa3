//! `TT_ISA` and `device.isa`: the path of a lesser processor.

use serde_json::Value;

use crate::harness::{Finished, Place, RunFolder, Running, nano};

fn with_isa(place: &Place, isa: &str, more: &[&str]) -> Finished {
    let mut command = place.command(&nano(more));
    command.env("TT_ISA", isa);
    Running::start(command).finish()
}

const STEP: [&str; 2] = ["trainer.max_steps=1", "hydra.run.dir=run"];

#[test]
fn an_instruction_set_that_there_is_not_is_refused_with_those_there_are() {
    let place = Place::new();
    with_isa(&place, "sse9", &STEP)
        .with_code(2)
        .complains(
            "TT_ISA: unknown instruction set `sse9`: one of generic, avx2, avx512, avx512bf16",
        )
        .complains("this processor has generic");
    let refused = |isa: &str| place.run_nano(&[&STEP[..], &[isa]].concat()).with_code(2);
    refused("device.isa=sse9").complains("device.isa");
    if tt_tensor::Isa::best() < tt_tensor::Isa::Avx512Bf16 {
        let missing = "this processor does not have the instruction set `avx512bf16`";
        with_isa(&place, "avx512bf16", &STEP)
            .with_code(2)
            .complains(missing);
        refused("device.isa=avx512bf16").complains(missing);
    }
    assert!(!place.path().join("run").exists());
}

#[test]
fn a_run_that_goes_on_with_another_instruction_set_says_so() {
    let place = Place::new();
    with_isa(&place, "generic", &STEP).with_code(0);
    let run = RunFolder(place.path().join("run"));
    let state = run.final_checkpoint().join("trainer_state/state.json");
    let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    let best = tt_tensor::Isa::best();
    if best == tt_tensor::Isa::Generic {
        return;
    }
    assert_eq!(state["instruction_set"], "generic");
    let more = ["trainer.max_steps=2", "hydra.run.dir=run"];
    with_isa(&place, "", &more).with_code(0).prints(&format!(
        "warning: the run began with generic instructions and goes on with {best}: rounding may differ"
    ));
    // The config key comes before the variable.
    let more = [
        "trainer.max_steps=3",
        "hydra.run.dir=run",
        "device.isa=generic",
    ];
    with_isa(&place, best.name(), &more).with_code(0).prints(&format!(
        "warning: the run began with {best} instructions and goes on with generic: rounding may differ"
    ));
}

/// Modules that are recomputed are found by a rehearsal, which must not settle what `device` says later.
#[test]
fn instruction_set_and_threads_are_those_of_the_config_also_with_remat() {
    let place = Place::new();
    let more = ["model/remat=mlp", "device.isa=generic", "device.threads=2"];
    with_isa(&place, "", &[&STEP[..], &more].concat()).with_code(0);
    let run = RunFolder(place.path().join("run"));
    let state = run.final_checkpoint().join("trainer_state/state.json");
    let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
    assert_eq!(state["instruction_set"], tt_tensor::Isa::Generic.name());
}
