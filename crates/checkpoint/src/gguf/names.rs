//! Tensors of a GGUF file by Hugging Face's names, and in Hugging Face's order of rows.
//!
//! llama.cpp turns the pairs (2i, 2i+1) of a head in the architecture `llama`, Hugging Face (i, i + D/2); so its
//! converter has reordered the rows of the query and key projections. In the other architectures both agree.
//! Source: llama.cpp, `convert_hf_to_gguf.py` and gguf-py's `tensor_mapping.py`.

use candle_core::quantized::gguf_file::Content;
use indexmap::IndexMap;

use super::{Stored, metadata::Metadata};

/// Divisors of the rotary frequencies, not a parameter.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Outside of blocks.
const WHOLE: [(&str, &str); 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// In block n: `blk.n.{0}.weight` is `model.layers.n.{1}.weight`, and so for `bias`.
const IN_BLOCK: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// All tensors in the order of the data. Error: tensors that no architecture here has, by name.
pub(super) fn to_hugging_face(
    content: &Content,
    metadata: &Metadata<'_>,
) -> Result<IndexMap<String, Stored>, String> {
    let heads = metadata.require("attention.head_count")?;
    let kv_heads = metadata.integer("attention.head_count_kv")?;
    let mut infos: Vec<_> = content.tensor_infos.iter().collect();
    infos.sort_by_key(|(name, info)| (info.offset, *name));
    let mut tensors = IndexMap::with_capacity(infos.len());
    let mut unknown = Vec::new();
    for (name, info) in infos {
        if name == ROPE_FACTORS {
            continue;
        }
        let Some(hf_name) = hugging_face(name) else {
            unknown.push(name.as_str());
            continue;
        };
        let permuted_heads = match metadata.architecture {
            "llama" if hf_name.contains(".q_proj.") => Some(heads),
            "llama" if hf_name.contains(".k_proj.") => Some(kv_heads.unwrap_or(heads)),
            _ => None,
        };
        let shape = info.shape.dims().to_vec();
        let rows = shape.first().copied().unwrap_or(0);
        let has_heads = |heads| rows > 0 && heads > 0 && rows.is_multiple_of(2 * heads);
        if permuted_heads.is_some_and(|heads| !has_heads(heads)) {
            return Err(format!("tensor `{name}` of {shape:?} has no even heads"));
        }
        let name = name.clone();
        let stored = Stored {
            name,
            shape,
            permuted_heads,
        };
        tensors.insert(hf_name, stored);
    }
    match unknown[..] {
        [] => Ok(tensors),
        [first] => Err(format!("the tensor `{first}` is not known")),
        [first, ..] => {
            let more = unknown.len() - 1;
            Err(format!(
                "the tensor `{first}` and {more} more are not known"
            ))
        }
    }
}

fn hugging_face(name: &str) -> Option<String> {
    if let Some((_, hf_name)) = WHOLE.iter().find(|(known, _)| *known == name) {
        return Some((*hf_name).to_owned());
    }
    let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (module, part) = rest.rsplit_once('.')?;
    let block: usize = block.parse().ok()?;
    let (_, module) = IN_BLOCK.iter().find(|(known, _)| *known == module)?;
    matches!(part, "weight" | "bias").then(|| format!("model.layers.{block}.{module}.{part}"))
}

/// `values` `[rows, ..]` of `heads` heads, with row 2i + half of a head moved to half * D/2 + i.
pub(super) fn unpermuted(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
    let (width, head_dim) = (values.len() / rows, rows / heads);
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (head, within) = (row / head_dim, row % head_dim);
        let (half, i) = (within / (head_dim / 2), within % (head_dim / 2));
        let from = (head * head_dim + 2 * i + half) * width;
        out.extend_from_slice(&values[from..from + width]);
    }
    out
}
