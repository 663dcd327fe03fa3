//! LoRA from outside: which layers it goes on, what it adds, what it trains, how it is saved.

use std::sync::Arc;

use serde_json::{Value, json};
use tt_adapters::{Error, Lora, LoraConfig, Saved};
use tt_models::{Input, Model, Qwen2Config, Qwen2ForCausalLM};
use tt_nn::{Forward, ParamTree};
use tt_tensor::{Device, Seed, Tape, Tensor};
use tt_testkit::{on_each_device, relative_l2};

fn model() -> Qwen2ForCausalLM {
    let config: Qwen2Config = serde_json::from_value(json!({
        "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
    }))
    .unwrap();
    Qwen2ForCausalLM::new(config).unwrap()
}

fn config(more: Value) -> LoraConfig {
    let mut config = json!({"target_modules": "all-linear", "r": 4, "lora_alpha": 8});
    config
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    serde_json::from_value(config).unwrap()
}

fn lora(more: Value) -> Lora {
    Lora::new(config(more), &model().params()).unwrap()
}

fn layers(targets: Value) -> Vec<String> {
    let lora = lora(json!({"target_modules": targets}));
    lora.layers()
        .iter()
        .map(|layer| layer.path.clone())
        .collect()
}

/// Base and adapter with every value drawn, `B` too: with `B` at zero the adapter would add nothing.
fn adapted(lora: Lora, device: Device) -> (ParamTree, ParamTree) {
    let base = ParamTree::init(&model().params(), Seed::new(1), device).unwrap();
    lora.freeze(&base);
    let mut seed = Seed::new(2);
    let weights = ParamTree::build(&lora.params(), |spec| {
        seed = seed.fold(1);
        Ok(Tensor::randn(0.0, 0.3, spec.shape.clone(), seed, device)?)
    })
    .unwrap();
    let params = base.with_adapter(Arc::new(lora), &weights).unwrap();
    (base, params)
}

fn input(device: Device) -> Input {
    let ids: Vec<u32> = (0..20).map(|i| i * 7 % 32).collect();
    Input::rows(Tensor::from_slice(&ids, (2, 10), device).unwrap()).unwrap()
}

fn logits(params: &ParamTree, device: Device) -> Vec<f32> {
    let fwd = Forward::inference(params);
    let logits = model().logits(&fwd, &input(device)).unwrap();
    logits.to_vec::<f32>().unwrap()
}

#[test]
fn all_linear_is_every_linear_layer_but_the_head() {
    let all = layers(json!("all-linear"));
    assert_eq!(all.len(), 2 * 7);
    assert!(
        all.iter().all(|path| path.starts_with("model.layers.")),
        "{all:?}"
    );
}

#[test]
fn names_and_globs_choose_layers() {
    let expected = [
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.self_attn.q_proj",
    ];
    assert_eq!(layers(json!("q_proj")), expected);
    assert_eq!(layers(json!(["layers.1.self_attn.q_proj"])), expected[1..]);
    assert_eq!(layers(json!(["layers.*.mlp.*", "q_proj"])).len(), 2 * 4);
}

#[test]
fn a_target_that_matches_nothing_names_what_is_near() {
    let refused = |targets: Value| {
        Lora::new(
            config(json!({"target_modules": targets})),
            &model().params(),
        )
        .unwrap_err()
    };
    let error = refused(json!(["q_proj", "v_prj"]));
    assert_eq!(
        error,
        Error::UnmatchedTarget {
            target: "v_prj".into(),
            index: 1,
            nearest: Some("v_proj".into())
        }
    );
    assert!(
        refused(json!("attn.q_proj"))
            .to_string()
            .contains("self_attn.q_proj")
    );
    assert!(
        refused(json!("lm_head"))
            .to_string()
            .contains("the output head")
    );
    assert!(
        refused(json!("embed_*"))
            .to_string()
            .contains("an embedding")
    );
}

on_each_device! {
    fn a_new_adapter_changes_nothing(device) {
        let lora = lora(json!({}));
        let base = ParamTree::init(&model().params(), Seed::new(1), device).unwrap();
        let weights = ParamTree::init(&lora.params(), Seed::new(2), device).unwrap();
        let a = weights.get("model.layers.0.self_attn.q_proj.lora_A.weight").unwrap().value();
        let a = a.to_vec::<f32>().unwrap();
        let largest = a.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        assert!(largest <= 0.25 && largest > 0.2, "uniform within 1 / sqrt(16): {largest}");
        let params = base.with_adapter(Arc::new(lora), &weights).unwrap();
        assert_eq!(logits(&params, device), logits(&base, device));
    }
}

on_each_device! {
    #[full_on_tpu]
    fn merged_weights_give_what_the_adapter_gives(device) {
        for (more, scale) in [(json!({}), 2.0), (json!({"use_rslora": true}), 4.0)] {
            let lora = lora(more);
            assert_eq!(lora.scale(), scale);
            let reference = self::lora(json!({"use_rslora": scale == 4.0}));
            let (base, params) = adapted(lora, device);
            let merged = ParamTree::build(&model().params(), |spec| {
                let value = base.get(&spec.path)?.value();
                let layer = spec.path.strip_suffix(".weight").unwrap_or_default();
                Ok(match reference.delta(layer, &params)? {
                    Some(delta) => value.add(&delta)?,
                    None => value,
                })
            })
            .unwrap();
            let (with, without) = (logits(&params, device), logits(&base, device));
            assert!(relative_l2(&with, &without) > 0.1, "the adapter matters");
            let difference = relative_l2(&logits(&merged, device), &with);
            assert!(difference < 1e-5, "{difference}");
        }
    }
}

on_each_device! {
    #[full_on_tpu]
    fn only_the_adapter_and_the_chosen_biases_get_gradients(device) {
        for (bias, expected) in [("none", 2 * 2), ("lora_only", 2 * 3), ("all", 2 * 5)] {
            let (_, params) = adapted(lora(json!({"target_modules": "q_proj", "bias": bias})), device);
            let (tape, model) = (Tape::new(), model());
            let fwd = Forward::training(&params, &tape, Seed::new(0));
            let hidden = model.hidden_states(&fwd, &input(device)).unwrap();
            tape.backward(&hidden.sqr().unwrap().sum_all().unwrap()).unwrap();
            let with_gradient: Vec<_> = params
                .iter()
                .filter(|(_, parameter)| parameter.grad().is_some())
                .map(|(spec, _)| spec.path.as_str())
                .collect();
            assert_eq!(with_gradient.len(), expected, "{bias}: {with_gradient:?}");
            let is_small = |path: &&str| path.contains("lora_") || path.ends_with(".bias");
            assert!(with_gradient.iter().all(is_small), "{with_gradient:?}");
        }
    }
}

on_each_device! {
    fn nothing_is_recorded_before_the_first_adapter(device) {
        let recorded = |targets: &str| {
            let (_, params) = adapted(lora(json!({"target_modules": targets})), device);
            let tape = Tape::new();
            let fwd = Forward::training(&params, &tape, Seed::new(0));
            model().hidden_states(&fwd, &input(device)).unwrap();
            tape.len()
        };
        let (all, last) = (recorded("q_proj"), recorded("layers.1.mlp.down_proj"));
        assert!(last < all / 4, "{last} of {all} nodes");
    }
}

on_each_device! {
    #[full_on_tpu]
    fn dropout_thins_what_the_adapter_reads_while_training(device) {
        let (_, params) = adapted(lora(json!({"lora_dropout": 0.5})), device);
        let hidden = |seed: Option<u64>| {
            let tape = Tape::new();
            let fwd = match seed {
                Some(seed) => Forward::training(&params, &tape, Seed::new(seed)),
                None => Forward::inference(&params),
            };
            model().hidden_states(&fwd, &input(device)).unwrap().to_vec::<f32>().unwrap()
        };
        assert_eq!(hidden(Some(1)), hidden(Some(1)));
        assert_ne!(hidden(Some(1)), hidden(Some(2)));
        assert_ne!(hidden(Some(1)), hidden(None));
    }
}

/// A layer that keeps its weight as `[in, out]`, and is not square: turned the wrong way, what is merged has another shape.
#[test]
fn a_weight_that_is_in_out_is_adapted_merged_and_saved_as_peft_does() {
    let layer = tt_nn::Linear::new(tt_nn::ModulePath::root().join("c_attn"), 6, 10);
    let layer = layer.with_weight_in_out();
    let lora = Arc::new(Lora::new(config(json!({})), &layer.params()).unwrap());
    let shapes: Vec<_> = lora.params().into_iter().map(|spec| spec.shape).collect();
    assert_eq!(shapes, [[4, 6], [10, 4]]);
    assert_eq!(lora.peft_config(None)["fan_in_fan_out"], json!(true));
    assert_eq!(
        self::lora(json!({})).peft_config(None)["fan_in_fan_out"],
        json!(false)
    );

    let drawn = |specs: &[tt_nn::ParamSpec], seed| {
        ParamTree::build(specs, |spec| {
            let seed = Seed::new(seed).fold_str(&spec.path);
            Ok(Tensor::randn(
                0.0,
                0.5,
                spec.shape.clone(),
                seed,
                Device::Cpu,
            )?)
        })
        .unwrap()
    };
    let (base, weights) = (drawn(&layer.params(), 1), drawn(&lora.params(), 2));
    let params = base.with_adapter(lora.clone(), &weights).unwrap();
    let x = Tensor::randn(0.0, 1.0, (3, 6), Seed::new(3), Device::Cpu).unwrap();
    let given = layer.forward(&Forward::inference(&params), &x).unwrap();
    let merged = ParamTree::build(&layer.params(), |spec| {
        let delta = lora.delta("c_attn", &params)?.unwrap();
        Ok(base.get(&spec.path)?.value().add(&delta)?)
    });
    let expected = layer
        .forward(&Forward::inference(&merged.unwrap()), &x)
        .unwrap();
    let [given, expected] = [given, expected].map(|y| y.to_vec::<f32>().unwrap());
    assert!(relative_l2(&given, &expected) < 1e-6);
}

#[test]
fn what_is_saved_for_peft_is_read_back() {
    let specs = model().params();
    for targets in [
        json!("all-linear"),
        json!(["q_proj", "v_proj"]),
        json!(["layers.1.mlp.*"]),
    ] {
        let lora = lora(json!({"target_modules": targets, "bias": "lora_only", "lora_alpha": 3.5}));
        let names: Vec<_> = lora
            .trained()
            .iter()
            .map(|spec| lora.peft_name(&spec.path))
            .collect();
        let saved = Saved {
            config: &lora.peft_config(Some("/base")),
            tensors: names.iter().map(String::as_str).collect(),
        };
        let ours = config(json!({"target_modules": "o_proj", "r": 1, "lora_dropout": 0.25}));
        let read = Lora::from_peft(&saved, ours, &specs).unwrap();
        assert_eq!(read.layers(), lora.layers());
        assert_eq!(read.trained(), lora.trained());
        assert_eq!(
            (read.scale(), read.config().lora_dropout),
            (lora.scale(), 0.25)
        );
    }
}

#[test]
fn names_for_peft_are_short_where_they_are_exact() {
    let names = |targets: Value| {
        let lora = lora(json!({"target_modules": targets}));
        lora.peft_config(None)["target_modules"].clone()
    };
    assert_eq!(
        names(json!("self_attn.*")),
        json!(["k_proj", "o_proj", "q_proj", "v_proj"])
    );
    assert_eq!(
        names(json!("layers.1.mlp.up_proj")),
        json!(["model.layers.1.mlp.up_proj"])
    );
}

#[test]
fn biases_are_named_as_peft_names_them() {
    let lora = lora(json!({"target_modules": "q_proj", "bias": "all"}));
    let prefix = "base_model.model.model.layers.0.self_attn";
    let name = |path: &str| lora.peft_name(&format!("model.layers.0.self_attn.{path}"));
    assert_eq!(
        name("q_proj.lora_A.weight"),
        format!("{prefix}.q_proj.lora_A.weight")
    );
    assert_eq!(
        name("q_proj.bias"),
        format!("{prefix}.q_proj.base_layer.bias")
    );
    assert_eq!(name("k_proj.bias"), format!("{prefix}.k_proj.bias"));
}

#[test]
fn what_would_change_the_numbers_unseen_is_refused() {
    let refused = [
        (json!({"peft_type": "IA3"}), "peft_type"),
        (json!({"init_lora_weights": "pissa"}), "init_lora_weights"),
        (json!({"use_dora": true}), "use_dora"),
        (json!({"rank_pattern": {"q_proj": 2}}), "rank_pattern"),
        (json!({"modules_to_save": ["lm_head"]}), "modules_to_save"),
        (json!({"some_new_option": 3}), "some_new_option"),
        (json!({"r": "many"}), "`r`"),
        (json!({"bias": "some"}), "`bias`"),
    ];
    for (extra, key) in refused {
        let mut config = lora(json!({})).peft_config(None);
        config
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let saved = Saved {
            config: &config,
            tensors: vec![],
        };
        let error =
            Lora::from_peft(&saved, self::config(json!({})), &model().params()).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
    let saved = Saved {
        config: &lora(json!({})).peft_config(None),
        tensors: vec!["base_model.model.model.layers.9.mlp.up_proj.lora_A.weight"],
    };
    let error = Lora::from_peft(&saved, self::config(json!({})), &model().params()).unwrap_err();
    assert!(error.to_string().contains("layers.9"), "{error}");
}
