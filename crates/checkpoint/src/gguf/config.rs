//! A Hugging Face `config.json` from a GGUF file's metadata.

use serde_json::{Value, json};
use tt_nn::{Rope, RopeScaling};

use super::metadata::Metadata;

/// `shapes` gives that of a tensor by its Hugging Face name; `is_tied` says that the head is the embedding. Error: a key
/// that is missing, or that asks for what the models here do not have.
pub(super) fn read<'a>(
    metadata: &Metadata<'_>,
    shapes: impl Fn(&str) -> Option<&'a [usize]>,
    rope_factors: Option<&[f32]>,
    is_tied: bool,
) -> Result<Value, String> {
    if metadata.architecture == "gpt2" {
        return gpt2(metadata, shapes, is_tied);
    }
    let refuse = |key: &str, why: String| Err(format!("`{}`: {why}", metadata.name(key)));
    if let Some(experts @ 1..) = metadata.integer("expert_count")? {
        return refuse(
            "expert_count",
            format!("{experts} experts are not supported"),
        );
    }
    let hidden_size = metadata.require("embedding_length")?;
    let heads = metadata.require("attention.head_count")?;
    let max_positions = metadata.require("context_length")?;
    let head_dim = metadata.integer("attention.key_length")?;
    let head_dim = head_dim.unwrap_or(hidden_size / heads.max(1));
    // Queries and keys that turn in part, and values of another size.
    for key in ["rope.dimension_count", "attention.value_length"] {
        if let Some(other) = metadata.integer(key)?.filter(|other| *other != head_dim) {
            return refuse(
                key,
                format!("{other} differs from the head size {head_dim}"),
            );
        }
    }
    if let Some(window) = metadata.integer("attention.sliding_window")?
        && (1..max_positions).contains(&window)
    {
        return refuse(
            "attention.sliding_window",
            format!("{window} is not supported"),
        );
    }
    let of_rope = metadata.keys("rope.");
    if let Some(key) = of_rope.into_iter().find(|it| !KNOWN_OF_ROPE.contains(it)) {
        return refuse(key, "this key is not supported".to_owned());
    }
    let theta = metadata.number("rope.freq_base")?.unwrap_or(10_000.0);
    let scaling = match rope_factors {
        Some(factors) => Some(llama3(factors, head_dim, theta, max_positions)?),
        None => scaling(metadata)?,
    };
    let Some([vocab_size, _]) = shapes("model.embed_tokens.weight") else {
        return Err("the tensor `token_embd.weight` is missing".to_owned());
    };
    let eps = metadata.number("attention.layer_norm_rms_epsilon")?;
    let has = |name: &str| shapes(name).is_some();
    Ok(json!({
        "architectures": [metadata.class],
        "attention_bias": has("model.layers.0.self_attn.o_proj.bias"),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": metadata.require("feed_forward_length")?,
        "max_position_embeddings": max_positions,
        "mlp_bias": has("model.layers.0.mlp.down_proj.bias"),
        "model_type": metadata.architecture,
        "num_attention_heads": heads,
        "num_hidden_layers": metadata.require("block_count")?,
        "num_key_value_heads": metadata.integer("attention.head_count_kv")?.unwrap_or(heads),
        "rms_norm_eps": eps.ok_or("the epsilon of RMSNorm is missing")?,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "tie_word_embeddings": is_tied,
        "vocab_size": vocab_size,
    }))
}

/// GPT-2's, under its own names. llama.cpp knows none of its switches, so a file has none.
fn gpt2<'a>(
    metadata: &Metadata<'_>,
    shapes: impl Fn(&str) -> Option<&'a [usize]>,
    is_tied: bool,
) -> Result<Value, String> {
    let rows = |name: &str, in_file: &str| match shapes(name) {
        Some(&[rows, _]) => Ok(rows),
        _ => Err(format!("the tensor `{in_file}` is missing")),
    };
    let eps = metadata.number("attention.layer_norm_epsilon")?;
    Ok(json!({
        "activation_function": "gelu_new",
        "architectures": [metadata.class],
        "layer_norm_epsilon": eps.ok_or("the epsilon of LayerNorm is missing")?,
        "model_type": metadata.architecture,
        "n_embd": metadata.require("embedding_length")?,
        "n_head": metadata.require("attention.head_count")?,
        "n_inner": metadata.require("feed_forward_length")?,
        "n_layer": metadata.require("block_count")?,
        "n_positions": rows("transformer.wpe.weight", "position_embd.weight")?,
        "tie_word_embeddings": is_tied,
        "vocab_size": rows("transformer.wte.weight", "token_embd.weight")?,
    }))
}

/// Keys below `rope.` that are read, or say only how the model came to be. What else stands there would turn queries and
/// keys in a way that is not ours.
const KNOWN_OF_ROPE: &[&str] = &[
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
];

/// As llama.cpp reads it: a factor without a type is linear, and `rope.scale_linear` its name in old files.
fn scaling(metadata: &Metadata<'_>) -> Result<Option<RopeScaling>, String> {
    let factor = match metadata.number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => metadata.number("rope.scale_linear")?,
    };
    // 0 is how writers say that there is none.
    let factor = factor.filter(|factor| *factor != 0.0);
    match (metadata.text("rope.scaling.type")?, factor) {
        (Some("none"), _) | (None, None) => Ok(None),
        (None | Some("linear"), Some(factor)) => Ok(Some(RopeScaling::Linear { factor })),
        (Some("linear"), None) => Err(format!(
            "`{}` is missing",
            metadata.name("rope.scaling.factor")
        )),
        (Some(other), _) => {
            let key = metadata.name("rope.scaling.type");
            Err(format!("`{key}`: `{other}` is not supported"))
        }
    }
}

/// The file has the divisors that the scaling `llama3` comes to, not its parameters. All published models say low 1,
/// high 4; a file whose divisors these cannot make is refused.
fn llama3(
    factors: &[f32],
    head_dim: usize,
    theta: f64,
    max_positions: usize,
) -> Result<RopeScaling, String> {
    let rope = Rope::new(head_dim, theta, max_positions);
    let factor = factors.iter().copied().fold(1.0, f32::max);
    let candidates = (4..=20).map(|log2| RopeScaling::Llama3 {
        factor: factor.into(),
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 1 << log2,
    });
    let mut fitting = candidates.filter(|scaling| {
        let ours = rope
            .inv_freq()
            .iter()
            .map(|&freq| freq / scaling.scale(freq));
        factors.len() == rope.inv_freq().len()
            && ours
                .zip(factors)
                .all(|(ours, file)| (ours - file).abs() <= 1e-4 * file)
    });
    fitting.next().ok_or_else(|| {
        "the tensor `rope_freqs.weight` is not that of Llama 3's scaling, and other divisors are not supported"
            .to_owned()
    })
}
