//! LoRA against Python's peft: what the adapter gives, its training, and the weights it is merged into.

use tt_models::{Gpt2Config, LlamaConfig, ModelConfig, Qwen2Config};
use tt_tensor::Device;
use tt_testkit::{on_each_device, relative_l2};

use crate::batches::flat;
use crate::check::Check;

on_each_device! {
    #[full_on_tpu]
    fn golden_lora_qwen2(device) {
        check::<Qwen2Config>("lora_qwen2", device);
    }
}

#[test]
fn golden_lora_llama_all_linear() {
    check::<LlamaConfig>("lora_llama_all_linear", Device::Cpu);
}

on_each_device! {
    #[full_on_tpu]
    /// Weights that are `[in, out]`.
    fn golden_lora_gpt2(device) {
        check::<Gpt2Config>("lora_gpt2", device);
    }
}

fn check<C: ModelConfig>(name: &str, device: Device) {
    let open = || Check::open_model::<C>(name, device);
    let check = open().with_adapter("adapter_init");
    check.decay_rule();
    check.logits();
    check.logits_of(&check.base(), "logits_base_without_adapter");
    check.gradients();
    check.curve();
    merged(&check, "merged_init");
    if check.golden.dir.join("merged_after.safetensors").exists() {
        merged(&open().with_adapter("adapter_after"), "merged_after");
    }
    // Merged weights are a model like any other.
    open().with_weights("merged_init.safetensors").logits();
}

/// Base and adapter together are the weights of the file.
fn merged(check: &Check, file: &str) {
    let (params, expected) = (check.params(), check.golden.tensors(file));
    let lora = &check.adapter.as_ref().expect("an adapter").lora;
    let mut merged = 0;
    for spec in check.model.params() {
        let value = params.get(&spec.path).unwrap().value();
        let layer = spec.path.strip_suffix(".weight").unwrap_or_default();
        let ours = match lora.delta(layer, &params).unwrap() {
            Some(delta) => value.add(&delta).unwrap(),
            None => value,
        };
        merged += usize::from(lora.layers().iter().any(|it| it.path == layer));
        let difference = relative_l2(&ours.to_vec().unwrap(), &flat(&expected[&spec.path]));
        assert!(difference < 1e-6, "{}: {difference:.2e}", spec.path);
    }
    assert_eq!(merged, lora.layers().len());
}
