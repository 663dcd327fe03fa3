//! The models there are, by the names that configs give them.

use tt_config::Table;

use crate::bert::BertConfig;
use crate::gpt2::Gpt2Config;
use crate::llama::LlamaConfig;
use crate::plugin::{BuildModel, entry};
use crate::qwen2::Qwen2Config;
use crate::qwen3::Qwen3Config;

/// What `model.type` may name.
pub const TABLE: Table<BuildModel> = Table::new(
    "model",
    &[
        entry::<BertConfig>(
            "bert.BertForMaskedLM",
            "BERT: attention both ways, learned positions, a head for hidden tokens",
        ),
        entry::<Gpt2Config>(
            "gpt2.GPT2LMHeadModel",
            "GPT-2: LayerNorm, learned positions, GELU, biases",
        ),
        entry::<LlamaConfig>(
            "llama.LlamaForCausalLM",
            "Llama 2 and 3: RMSNorm, grouped-query attention, RoPE, SwiGLU",
        ),
        entry::<Qwen2Config>(
            "qwen2.Qwen2ForCausalLM",
            "Qwen2: Llama with biased query, key and value projections",
        ),
        entry::<Qwen3Config>(
            "qwen3.Qwen3ForCausalLM",
            "Qwen3: Llama with normalised query and key heads",
        ),
    ],
);
