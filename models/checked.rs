//! A model held to what [`Model`] promises: what it gives has the shape and dtype that losses and generation go by.
//!
//! Asks shapes alone, so it costs nothing. Errors: [`Error::Contract`], which says what was given and what is due.

use serde_json::Value;
use tt_nn::{Forward, ModulePath, ParamSpec};
use tt_tensor::{DType, Tensor, fused};

use crate::error::{Error, Result};
use crate::{Generation, Input, Model, TensorNames};

/// `M`, each of whose outputs is checked.
pub struct Checked<M>(pub M);

// What is not passed on here would be the trait's default and not the model's.
#[deny(clippy::missing_trait_methods)]
impl<M> Model for Checked<M>
where
    M: std::ops::Deref<Target = dyn Model> + Send + Sync,
{
    fn params(&self) -> Vec<ParamSpec> {
        self.0.params()
    }

    fn hidden_states(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let hidden = self.0.hidden_states(fwd, input)?;
        check_hidden("`hidden_states`", &hidden, input)?;
        Ok(hidden)
    }

    fn encode(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let hidden = self.0.encode(fwd, input)?;
        check_hidden("`encode`", &hidden, input)?;
        Ok(hidden)
    }

    fn head(&self, fwd: &Forward) -> Result<Tensor> {
        let head = self.0.head(fwd)?;
        self.check_head("`head`", &head)?;
        Ok(head)
    }

    fn output(&self, fwd: &Forward) -> Result<fused::Head> {
        let head = self.0.output(fwd)?;
        self.check_head("the weight of `output`", &head.weight)?;
        if let Some(bias) = &head.bias {
            const BIAS: &str = "the bias of `output`";
            if bias.dims() != [self.vocab_size()] {
                return Err(broken(BIAS, bias, &format!("[{}]", self.vocab_size())));
            }
            expect_float(BIAS, bias)?;
        }
        Ok(head)
    }

    fn is_causal(&self) -> bool {
        self.0.is_causal()
    }

    fn generation(&self) -> Generation {
        self.0.generation()
    }

    fn tensor_names(&self) -> TensorNames {
        self.0.tensor_names()
    }

    fn blocks(&self) -> Vec<ModulePath> {
        self.0.blocks()
    }

    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn max_positions(&self) -> usize {
        self.0.max_positions()
    }

    fn hf_config(&self) -> Value {
        self.0.hf_config()
    }

    fn logits(&self, fwd: &Forward, input: &Input) -> Result<Tensor> {
        let logits = self.0.logits(fwd, input)?;
        let rows = input.input_ids.dims();
        let due = [rows, &[self.vocab_size()]].concat();
        if logits.dims() != due {
            return Err(broken("`logits`", &logits, &format!("{due:?}")));
        }
        expect_float("`logits`", &logits)?;
        Ok(logits)
    }
}

impl<M> Checked<M>
where
    M: std::ops::Deref<Target = dyn Model> + Send + Sync,
{
    fn check_head(&self, what: &'static str, weight: &Tensor) -> Result<()> {
        let vocab_size = self.vocab_size();
        if weight.rank() != 2 || weight.dims().first() != Some(&vocab_size) {
            return Err(broken(what, weight, &format!("[{vocab_size}, hidden]")));
        }
        expect_float(what, weight)
    }
}

fn check_hidden(what: &'static str, hidden: &Tensor, input: &Input) -> Result<()> {
    let (rows, dims) = (input.input_ids.dims(), hidden.dims());
    if dims.len() != 3 || !dims.starts_with(rows) {
        let due = format!("[{}, hidden]: one vector for each token", listed(rows));
        return Err(broken(what, hidden, &due));
    }
    expect_float(what, hidden)
}

fn expect_float(what: &'static str, tensor: &Tensor) -> Result<()> {
    match tensor.dtype() {
        DType::F32 | DType::BF16 | DType::F16 => Ok(()),
        _ => Err(broken(what, tensor, "f32, bf16 or f16")),
    }
}

fn broken(what: &'static str, got: &Tensor, due: &str) -> Error {
    Error::Contract {
        what,
        got: format!("{:?} of {:?}", got.dims(), got.dtype()),
        due: due.to_owned(),
    }
}

fn listed(dims: &[usize]) -> String {
    let dims: Vec<_> = dims.iter().map(usize::to_string).collect();
    dims.join(", ")
}
