//! Models and losses against Hugging Face transformers, a case a test; `TT_GOLDEN` names another folder of cases.
//!
//! A case of another kind takes the steps of [`Check`] that hold for it, or its tensors for steps of its own.

mod batches;
mod check;
mod lora;

use check::Check;
use tt_models::{Architecture, LlamaConfig, Qwen2Config, Qwen3Config};
use tt_tensor::Precision;
use tt_testkit::devices;

#[test]
fn golden_qwen2_tied() {
    check::<Qwen2Config>("qwen2_tied");
}

#[test]
fn golden_qwen2_untied() {
    check::<Qwen2Config>("qwen2_untied");
}

#[test]
fn golden_qwen2_untied_sharded() {
    for device in devices() {
        let check = Check::open::<Qwen2Config>("qwen2_untied", device);
        check.with_weights("sharded").all();
    }
}

#[test]
fn golden_qwen2_packed() {
    check::<Qwen2Config>("qwen2_packed");
}

#[test]
fn golden_grad_accumulation() {
    check::<Qwen2Config>("grad_accumulation");
}

#[test]
fn golden_label_smoothing() {
    check::<Qwen2Config>("label_smoothing");
}

#[test]
fn golden_z_loss() {
    check::<Qwen2Config>("z_loss");
}

#[test]
fn golden_llama2() {
    check::<LlamaConfig>("llama2");
}

#[test]
fn golden_llama3_rope() {
    check::<LlamaConfig>("llama3_rope");
}

#[test]
fn golden_llama_linear_rope() {
    check::<LlamaConfig>("llama_linear_rope");
}

#[test]
fn golden_qwen3() {
    check::<Qwen3Config>("qwen3");
}

/// Judged by the distance to the float32 values, of which the case allows three times what torch's autocast has.
#[test]
fn golden_bf16() {
    for device in devices() {
        let check = Check::open::<Qwen2Config>("bf16", device);
        check.with_precision(Precision::Bf16).all();
    }
}

/// With three more bits of mantissa than bf16, f16 stays within an eighth of its bounds. The curve is that of bf16,
/// whose own distance its bounds allow for.
#[test]
fn golden_bf16_in_fp16() {
    for device in devices() {
        let mut check = Check::open::<Qwen2Config>("bf16", device).with_precision(Precision::F16);
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
}

/// All that the case gives, on every device.
fn check<C: Architecture>(name: &str) {
    for device in devices() {
        Check::open::<C>(name, device).all();
    }
}
