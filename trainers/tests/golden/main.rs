//! Models and losses against Hugging Face transformers, a case a test; `TT_GOLDEN` names another folder of cases.
//!
//! Those that between them use every kernel run on the TPU too, at the tolerances of the CPU.
//!
//! A case of another kind takes the steps of [`Check`] that hold for it, or its tensors for steps of its own.

mod batches;
mod bert;
mod check;
#[path = "../common/mod.rs"]
mod common;
mod gpt2;
mod lora;
mod preference;
mod ranks;

use check::Check;
use tt_models::{Architecture, LlamaConfig, Qwen2Config, Qwen3Config};
use tt_tensor::{Device, Precision};
use tt_testkit::on_each_device;

on_each_device! {
    fn golden_qwen2_tied(device) {
        check::<Qwen2Config>("qwen2_tied", device);
    }
}

#[test]
fn golden_qwen2_untied() {
    check::<Qwen2Config>("qwen2_untied", Device::Cpu);
}

#[test]
fn golden_qwen2_untied_sharded() {
    let check = Check::open::<Qwen2Config>("qwen2_untied", Device::Cpu);
    check.with_weights("sharded").all();
}

on_each_device! {
    #[full_on_tpu]
    fn golden_qwen2_packed(device) {
        check::<Qwen2Config>("qwen2_packed", device);
    }
}

on_each_device! {
    #[full_on_tpu]
    fn golden_grad_accumulation(device) {
        check::<Qwen2Config>("grad_accumulation", device);
    }
}

#[test]
fn golden_label_smoothing() {
    check::<Qwen2Config>("label_smoothing", Device::Cpu);
}

#[test]
fn golden_z_loss() {
    check::<Qwen2Config>("z_loss", Device::Cpu);
}

#[test]
fn golden_llama2() {
    check::<LlamaConfig>("llama2", Device::Cpu);
}

on_each_device! {
    #[full_on_tpu]
    fn golden_llama3_rope(device) {
        check::<LlamaConfig>("llama3_rope", device);
    }
}

#[test]
fn golden_llama_linear_rope() {
    check::<LlamaConfig>("llama_linear_rope", Device::Cpu);
}

#[test]
fn golden_qwen3() {
    check::<Qwen3Config>("qwen3", Device::Cpu);
}

on_each_device! {
    #[full_on_tpu]
    /// Judged by the distance to the float32 values, of which the case allows three times what torch's autocast has.
    fn golden_bf16(device) {
        let check = Check::open::<Qwen2Config>("bf16", device);
        check.with_precision(Precision::Bf16).all();
    }
}

/// With three more bits of mantissa than bf16, f16 stays within an eighth of its bounds. The curve is that of bf16,
/// whose own distance its bounds allow for.
#[test]
fn golden_bf16_in_fp16() {
    let mut check = Check::open::<Qwen2Config>("bf16", Device::Cpu).with_precision(Precision::F16);
    let tolerances = &mut check.case.tolerances;
    for bound in [
        &mut tolerances.loss_rel,
        &mut tolerances.grad_norm_rel,
        &mut tolerances.grad_rel_l2_default,
    ] {
        *bound /= 8.0;
    }
    tolerances.logits_rel_l2_to_f32 = tolerances.logits_rel_l2_to_f32.map(|rel| rel / 8.0);
    check.all();
}

/// All that the case gives.
fn check<C: Architecture>(name: &str, device: Device) {
    Check::open::<C>(name, device).all();
}
