//! The gated feed-forward block of Llama and Qwen: `down(silu(gate(x)) * up(x))`.

use tt_tensor::{Tensor, fused};

use crate::error::Result;
use crate::forward::Forward;
use crate::linear::Linear;
use crate::param_tree::ParamSpec;
use crate::path::ModulePath;

/// `down_proj(silu(gate_proj(x)) * up_proj(x))`, without biases unless asked for.
#[derive(Clone, Debug)]
pub struct GatedMlp {
    path: ModulePath,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl GatedMlp {
    /// The module at `path`; weights begin normal with the standard deviation `std`.
    pub fn new(path: ModulePath, hidden: usize, intermediate: usize, std: f32) -> Self {
        let linear =
            |name, inputs, outputs| Linear::new(path.join(name), inputs, outputs).with_std(std);
        Self {
            gate_proj: linear("gate_proj", hidden, intermediate),
            up_proj: linear("up_proj", hidden, intermediate),
            down_proj: linear("down_proj", intermediate, hidden),
            path,
        }
    }

    /// With biases on the three projections, if `bias`.
    pub fn with_bias(self, bias: bool) -> Self {
        let with_bias = |linear: Linear| if bias { linear.with_bias() } else { linear };
        Self {
            gate_proj: with_bias(self.gate_proj),
            up_proj: with_bias(self.up_proj),
            down_proj: with_bias(self.down_proj),
            ..self
        }
    }

    /// Its parameters, all below its path.
    pub fn params(&self) -> Vec<ParamSpec> {
        [&self.gate_proj, &self.up_proj, &self.down_proj]
            .into_iter()
            .flat_map(Linear::params)
            .collect()
    }

    /// `x` `[.., hidden]` to the same shape.
    pub fn forward(&self, fwd: &Forward, x: &Tensor) -> Result<Tensor> {
        let this = self.clone();
        fwd.module(&self.path, "GatedMlp", x, move |fwd, x| {
            let gate = this.gate_proj.forward(fwd, x)?; // [.., intermediate]
            let up = this.up_proj.forward(fwd, x)?;
            this.down_proj.forward(fwd, &fused::swiglu(&gate, &up)?)
        })
    }
}
