//! All tests of this program once more for each lesser instruction set of this processor, in a process of its own: an
//! instruction set is settled for a whole process.

use std::env;
use std::io::{Write, stderr};
use std::process::Command;

use candle_core::{CpuStorage, Result};
use tt_cpu::isa::{self, VARIABLE};
use tt_cpu::{FusedOps, Isa};

use crate::common::{Operand, f32s, random, zeros};

/// Past the capture of the test harness, so that what a machine cannot show is seen where tests pass.
fn say(text: &str) {
    writeln!(stderr(), "{text}").expect("standard error");
}

#[test]
fn every_test_passes_on_every_instruction_set_of_this_processor() {
    if env::var_os(VARIABLE).is_some() {
        return; // one was asked for: by this test, or by who runs the tests
    }
    let best = Isa::best();
    for isa in Isa::ALL.into_iter().filter(|isa| *isa != best) {
        if isa > best {
            say(&format!(
                "kernels for {isa}: not run, this processor does not have it"
            ));
            continue;
        }
        let program = env::current_exe().expect("this program");
        let output = Command::new(program)
            .env(VARIABLE, isa.name())
            .arg("--quiet")
            .output();
        let output = output.expect("a process");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kernels for {isa}:\n{out}\n{err}");
        say(&format!("kernels for {isa}: passed"));
    }
    say(&format!("kernels for {best}: those of this process"));
}

#[test]
fn the_instruction_set_that_was_asked_for_is_in_use_and_no_other_can_follow() {
    let asked = env::var(VARIABLE).map(|name| name.parse::<Isa>().expect("a name"));
    let in_use = asked.unwrap_or_else(|_| Isa::best());
    let x = Operand::f32(random(64, 1), 64);
    CpuStorage::sum_squares_into(x.view(), &mut zeros(1), 0).expect("a sum");
    if cfg!(target_arch = "x86_64") {
        assert_eq!(isa::isa(), in_use.name());
    }
    in_use.select().expect("it is in use already");
    for other in Isa::available().into_iter().filter(|isa| *isa != in_use) {
        let error = other.select().unwrap_err().to_string();
        assert!(error.contains(&format!("`{in_use}` is in use")), "{error}");
    }
}

/// A sum of rounding errors alone: fused, the product of two numbers minus its rounded self is not 0.
#[test]
fn element_wise_kernels_fuse_multiplications_with_additions_everywhere() -> Result<()> {
    let x = 1.0 + 2f32.powi(-12);
    let mut out = CpuStorage::F32(vec![-(x * x); 100]);
    let operand = Operand::f32(vec![x; 100], 100);
    out.axpy(x, operand.view())?;
    assert!(f32s(&out).iter().all(|error| *error == 2f32.powi(-24)));
    Ok(())
}
