//! The chip and what stands between it and this program: driver, runtime, firmware, and whether their versions fit.

use std::path::{Path, PathBuf};

use tt_tpu::chip::{self, Fact, Versions};
use tt_tpu::sdk::{Sdk, SdkKind};

use super::findings::{Findings, State};

/// Names the folder to take for `/`, for tests.
const ROOT: &str = "TPU_TRAIN_DOCTOR_ROOT";

const TPU: &str = "tpu";

/// What files say of it.
pub(super) fn rows(findings: &mut Findings, sdk: &Sdk, vendors: Option<&Path>) -> Versions {
    let root = std::env::var_os(ROOT).map_or_else(|| PathBuf::from("/"), PathBuf::from);
    let versions = Versions::read(&root, sdk, vendors);
    match sdk.kind {
        SdkKind::Emulator => {
            for fact in chip::of_emulator(sdk.chip) {
                row(findings, &fact);
            }
        }
        SdkKind::Driver => row(findings, &chip::of_driver(&root)),
    }
    for fact in versions.facts(sdk, vendors) {
        row(findings, &fact);
    }
    versions
}

/// Whether the versions fit. Those that do not are a problem where the device does not work.
pub(super) fn fit(findings: &mut Findings, versions: &Versions) {
    let state = if findings.has_problem() {
        State::Problem
    } else {
        State::Doubt
    };
    let misfits = versions.misfits();
    for misfit in &misfits {
        findings.row(TPU, "versions", state, misfit);
    }
    if misfits.is_empty() {
        let known = [&versions.driver, &versions.runtime, &versions.firmware];
        let text = match known.iter().filter(|it| it.is_some()).count() {
            0 | 1 => "unknown: too few of them are",
            _ => "nothing known is against them",
        };
        findings.row(TPU, "versions", State::Ok, text);
    }
}

pub(super) fn row(findings: &mut Findings, fact: &Fact) {
    let (state, text) = match &fact.told {
        Ok(text) if fact.name == "chips" && chip::is_faulty(text) => (State::Problem, text.clone()),
        Ok(text) => (State::Ok, text.clone()),
        Err(looked_in) => (State::Missing, format!("unknown: not in {looked_in}")),
    };
    findings.row(TPU, fact.name, state, text);
}
