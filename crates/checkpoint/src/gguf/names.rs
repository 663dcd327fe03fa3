//! Tensors of a GGUF file by Hugging Face's names, and in Hugging Face's order of rows.
//!
//! llama.cpp turns the pairs (2i, 2i+1) of a head in the architecture `llama`, Hugging Face (i, i + D/2); so its
//! converter has reordered the rows of the query and key projections. In the other architectures both agree. GPT-2's
//! weights are `[in, out]` in Hugging Face's files and `[out, in]` here, as all others.
//! Source: llama.cpp, `convert_hf_to_gguf.py` and gguf-py's `tensor_mapping.py`.

use candle_core::quantized::gguf_file::Content;
use indexmap::IndexMap;

use super::{Stored, metadata::Metadata};

/// Divisors of the rotary frequencies, not a parameter.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// In every architecture.
pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const HEAD: &str = "output.weight";

/// What the tensors of an architecture are called: in the file, and by Hugging Face.
struct Naming {
    /// Outside of blocks.
    whole: &'static [(&'static str, &'static str)],
    /// Hugging Face's name of block n is this and n.
    blocks: &'static str,
    /// In block n: `blk.n.{0}.weight` is `{blocks}.n.{1}.weight`, and so for `bias`.
    in_block: &'static [(&'static str, &'static str)],
}

const LLAMA: Naming = Naming {
    whole: &[
        (EMBEDDING, "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        (HEAD, "lm_head.weight"),
    ],
    blocks: "model.layers",
    in_block: &[
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
    ],
};

const GPT2: Naming = Naming {
    whole: &[
        (EMBEDDING, "transformer.wte.weight"),
        ("position_embd.weight", "transformer.wpe.weight"),
        ("output_norm.weight", "transformer.ln_f.weight"),
        ("output_norm.bias", "transformer.ln_f.bias"),
        (HEAD, "lm_head.weight"),
    ],
    blocks: "transformer.h",
    in_block: &[
        ("attn_norm", "ln_1"),
        ("attn_qkv", "attn.c_attn"),
        ("attn_output", "attn.c_proj"),
        ("ffn_norm", "ln_2"),
        ("ffn_up", "mlp.c_fc"),
        ("ffn_down", "mlp.c_proj"),
    ],
};

/// How the values in the file lie, beside how Hugging Face has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    Same,
    /// Rows of so many heads in llama.cpp's order for rotary positions.
    Permuted {
        heads: usize,
    },
    Transposed,
}

impl Order {
    /// `values` in Hugging Face's order, `shape` being the tensor's there.
    pub(super) fn restored(self, values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        match self {
            Self::Same => values,
            Self::Permuted { heads } => unpermuted(&values, shape[0], heads),
            Self::Transposed => transposed(&values, shape[1]),
        }
    }
}

/// All tensors in the order of the data. Error: tensors that no architecture here has, by name.
pub(super) fn to_hugging_face(
    content: &Content,
    metadata: &Metadata<'_>,
) -> Result<IndexMap<String, Stored>, String> {
    let heads = metadata.require("attention.head_count")?;
    let kv_heads = metadata.integer("attention.head_count_kv")?;
    let is_gpt2 = metadata.architecture == "gpt2";
    let naming = if is_gpt2 { &GPT2 } else { &LLAMA };
    let mut infos: Vec<_> = content.tensor_infos.iter().collect();
    infos.sort_by_key(|(name, info)| (info.offset, *name));
    let mut tensors = IndexMap::with_capacity(infos.len());
    let mut unknown = Vec::new();
    for (name, info) in infos {
        if name == ROPE_FACTORS {
            continue;
        }
        let Some(hf_name) = naming.hugging_face(name) else {
            unknown.push(name.as_str());
            continue;
        };
        let permuted_heads = match metadata.architecture {
            "llama" if hf_name.contains(".q_proj.") => Some(heads),
            "llama" if hf_name.contains(".k_proj.") => Some(kv_heads.unwrap_or(heads)),
            _ => None,
        };
        let mut shape = info.shape.dims().to_vec();
        let rows = shape.first().copied().unwrap_or(0);
        let has_heads = |heads| rows > 0 && heads > 0 && rows.is_multiple_of(2 * heads);
        if permuted_heads.is_some_and(|heads| !has_heads(heads)) {
            return Err(format!("tensor `{name}` of {shape:?} has no even heads"));
        }
        let order = match permuted_heads {
            Some(heads) => Order::Permuted { heads },
            None if is_gpt2 && hf_name.contains(".c_") && shape.len() == 2 => Order::Transposed,
            None => Order::Same,
        };
        if order == Order::Transposed {
            shape.reverse();
        }
        let name = name.clone();
        let stored = Stored { name, shape, order };
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

impl Naming {
    fn hugging_face(&self, name: &str) -> Option<String> {
        if let Some((_, hf_name)) = self.whole.iter().find(|(known, _)| *known == name) {
            return Some((*hf_name).to_owned());
        }
        let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (module, part) = rest.rsplit_once('.')?;
        let block: usize = block.parse().ok()?;
        let (_, module) = self.in_block.iter().find(|(known, _)| *known == module)?;
        let blocks = self.blocks;
        matches!(part, "weight" | "bias").then(|| format!("{blocks}.{block}.{module}.{part}"))
    }
}

/// `values` `[rows, ..]` of `heads` heads, with row 2i + half of a head moved to half * D/2 + i.
fn unpermuted(values: &[f32], rows: usize, heads: usize) -> Vec<f32> {
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

/// `values` of columns `rows` long, row by row.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        out.extend((0..columns).map(|column| values[column * rows + row]));
    }
    out
}
