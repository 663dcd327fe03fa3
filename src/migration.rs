//! Configurations of easy-torch-tpu: the keys that say nothing about a run here.
//!
//! That project's files move over by copying (`docs/migrating-from-easy-torch-tpu.md`). What has no meaning here is taken
//! out of the composed tree before it is checked, with one note a key; [`TABLE`] is all there is to it. A value that
//! would change the run is left where it is, and so reported as any unknown key, with its line. So is a key that the
//! chosen plug-in knows.

use tt_config::{Composition, Missing, Section, Table, Value};

use crate::plugins::Plugins;

/// A key that is accepted and not used.
struct Unused {
    key: &'static str,
    values: Values,
    /// Why, or what to say instead.
    note: &'static str,
}

/// Which values of the key make no difference.
enum Values {
    Any,
    /// As JSON, text without its quotes.
    Only(&'static [&'static str]),
}

use Values::{Any, Only};

#[rustfmt::skip] // a table reads by its columns
const TABLE: &[Unused] = &[
    Unused { key: "torch_dtype", values: Only(&["float32"]), note: "weights are float32; `precision` is about products" },
    Unused { key: "matmul_precision", values: Any, note: "products are in full `precision`" },
    Unused { key: "model.remat.optimization_barrier_layers", values: Any, note: "there is no compiler to hold back" },
    Unused { key: "model.remat.scan_layers", values: Any, note: "there is no compiler to save from unrolled layers" },
    Unused { key: "model.remat.offload_tensors", values: Any, note: "activations are in the memory of the host already" },
    Unused { key: "model.remat.advanced", values: Any, note: "`activation_checkpoint_layers` says all there is to say" },
    Unused { key: "model.pure_modules", values: Any, note: "there is no tracing to save" },
    Unused { key: "model.attention_kernel", values: Any, note: "there is one kernel, blocked as flash attention is" },
    Unused { key: "model.torch_dtype", values: Only(&["float32"]), note: "weights are float32" },
    Unused { key: "model.pretrained_step", values: Only(&["null"]), note: "`resume` goes on from a checkpoint" },
    Unused { key: "model.pretrained_strict", values: Only(&["null", "true"]), note: "loading is always strict" },
    Unused { key: "model.bos_token_id", values: Any, note: "the tokenizer knows its special tokens" },
    Unused { key: "model.eos_token_id", values: Any, note: "the tokenizer knows its special tokens" },
    Unused { key: "model.pad_token_id", values: Any, note: "padding is masked and needs no token" },
    Unused { key: "model.hidden_act", values: Only(&["silu"]), note: "the model's activation is silu" },
    Unused { key: "model.attention_dropout", values: Only(&["false", "0", "0.0"]), note: "attention has no dropout" },
    Unused { key: "trainer.optimizer.kwargs.update_clip", values: Only(&["null"]), note: "updates are not clipped" },
    Unused { key: "trainer.optimizer.kwargs.correct_bias", values: Only(&["true"]), note: "the bias is always corrected" },
];

/// Takes out what is not used, and gives what to tell the user about it.
pub(crate) fn apply(composition: &mut Composition, plugins: &Plugins) -> Vec<String> {
    // All are judged before any is taken out: one may refer to another.
    let unused: Vec<&Unused> = TABLE
        .iter()
        .filter(|unused| unused.values.hold(composition, unused.key))
        .filter(|unused| !is_known(composition, plugins, unused.key))
        .collect();
    let mut notes = Vec::new();
    for Unused { key, note, .. } in unused {
        composition.remove(key);
        notes.push(format!("`{key}` is not used: {note}"));
    }
    // A mapping of nothing but such keys goes with them.
    let remat = composition
        .get("model.remat")
        .and_then(|node| node.as_map());
    if remat.is_some_and(|map| map.is_empty()) {
        composition.remove("model.remat");
    }
    let [micro, global] = ["trainer.micro_batch_size", "trainer.global_batch_size"];
    if composition.get(micro).is_none() && composition.get(global).is_some() {
        composition.set(micro, Value::Str(format!("${{{global}}}")));
        notes.push(format!("`{micro}` is not given: all of `{global}` at once"));
    }
    notes
}

impl Values {
    /// Whether the key is there, with one of these values.
    fn hold(&self, composition: &Composition, key: &str) -> bool {
        if composition.get(key).is_none() {
            return false;
        }
        let Only(accepted) = self else {
            return true;
        };
        // An interpolation that cannot be resolved is the check's to report.
        let Ok(node) = composition.resolved(key, Missing::Keep) else {
            return false;
        };
        let json = node.to_json();
        let text = json
            .as_str()
            .map_or_else(|| json.to_string(), str::to_owned);
        accepted.contains(&text.as_str())
    }
}

/// Whether the plug-in that the key would go to has a key of that name.
fn is_known(composition: &Composition, plugins: &Plugins, key: &str) -> bool {
    let section = |path| composition.section(path);
    if let Some(key) = key.strip_prefix("trainer.optimizer.kwargs.") {
        return knows(&plugins.optimizers, &section("trainer.optimizer"), key);
    }
    // `model.remat` has the same keys whatever the model.
    let of_model = key.strip_prefix("model.");
    let of_model = of_model.filter(|key| !key.starts_with("remat."));
    of_model.is_some_and(|key| knows(&plugins.models, &section("model"), key))
}

fn knows<B: Clone>(table: &Table<B>, section: &Section<'_>, key: &str) -> bool {
    let first = key.split('.').next().unwrap_or(key);
    table.choose(section).is_ok_and(|entry| {
        let schema = (entry.schema)();
        let properties = schema.get("properties");
        properties.is_some_and(|properties| properties.get(first).is_some())
    })
}

#[cfg(test)]
mod tests {
    use schemars::{JsonSchema, schema_for};
    use serde_json::Value as Json;
    use tt_config::{Composer, Entry};

    use super::*;
    use crate::config::AppConfig;

    fn composed(yaml: &'static str) -> Composition {
        let files: &'static [_] = Box::leak(Box::new([("default.yaml", yaml)]));
        let composer = Composer::new("default").embedded("test", files);
        composer.compose(&[] as &[&str]).expect("composes")
    }

    #[test]
    fn what_is_not_used_is_taken_out_with_one_note_each() {
        let mut composition = composed(
            "{torch_dtype: float32, matmul_precision: high,\n\
             model: {torch_dtype: '${torch_dtype}', hidden_size: 64, remat: {scan_layers: layers}},\n\
             trainer: {global_batch_size: 8}}",
        );
        let notes = apply(&mut composition, &Plugins::built_in());
        assert_eq!(notes.len(), 5, "{notes:#?}");
        assert!(
            notes[1].starts_with("`matmul_precision` is not used: "),
            "{notes:#?}"
        );
        let left = composition.resolve(Missing::Keep).expect("resolves");
        assert_eq!(
            left.to_json(),
            serde_json::json!({
                "model": { "hidden_size": 64 },
                "trainer": { "global_batch_size": 8, "micro_batch_size": 8 },
            })
        );
        assert!(apply(&mut composition, &Plugins::built_in()).is_empty());
    }

    #[test]
    fn what_would_change_the_run_is_left_to_be_reported() {
        let yaml = "{torch_dtype: bfloat16, model: {hidden_act: gelu, remat: {new: 1}}}";
        let mut composition = composed(yaml);
        assert!(apply(&mut composition, &Plugins::built_in()).is_empty());
        for key in ["torch_dtype", "model.hidden_act", "model.remat.new"] {
            assert!(composition.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn a_key_that_the_chosen_model_knows_is_its_own() {
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "read as a schema")]
        struct Own {
            eos_token_id: u32,
        }
        let mut plugins = Plugins::built_in();
        let qwen2 = plugins.models.entries()[0].clone();
        plugins.models = plugins.models.with(Entry {
            name: "own.Model",
            schema: || schema_for!(Own),
            ..qwen2
        });
        let mut composition =
            composed("model: {type: own.Model, eos_token_id: 2, bos_token_id: 1}");
        let notes = apply(&mut composition, &plugins);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(composition.get("model.eos_token_id").is_some());
    }

    #[test]
    fn no_key_of_the_table_means_something_here() {
        let root = schema_for!(AppConfig).to_value();
        let is_known = |key: &str| has_key(&root, &root, &key.split('.').collect::<Vec<_>>());
        assert!(is_known("trainer.max_grad_norm"));
        for Unused { key, .. } in TABLE {
            assert!(!is_known(key), "{key}");
        }
    }

    /// Whether an object of `schema` has the key at `path` in it.
    fn has_key(root: &Json, schema: &Json, path: &[&str]) -> bool {
        if let Some(reference) = schema["$ref"].as_str() {
            let found = root.pointer(reference.trim_start_matches('#'));
            return has_key(root, found.expect("a definition"), path);
        }
        let or_null = schema["anyOf"].as_array().into_iter().flatten();
        let is_here = match path {
            [] => true,
            [first, rest @ ..] => {
                let field = schema["properties"].get(first);
                field.is_some_and(|field| has_key(root, field, rest))
            }
        };
        is_here
            || or_null
                .into_iter()
                .any(|schema| has_key(root, schema, path))
    }
}
