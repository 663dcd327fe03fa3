//! Texts as vectors: the last hidden states of their tokens, pooled.
//!
//! Shapes: `[N, H]`, f32 on the host. Mean: over the text's own tokens, whatever padding stands beside them. Normalised: divided
//! by the L2 norm, as `sentence-transformers` does. A text without a token has zeros.
//! Numeric notes: a vector differs by rounding with what shares its batch, as products of other shapes sum in another order.
//! Errors: a text longer than the model takes; a vector that is not finite.

use tt_models::Model;
use tt_nn::{Forward, ParamTree};
use tt_tensor::{DType, Device, Precision, Tensor};

use crate::batching::{batches, input};
use crate::{Error, Result};

/// How the states of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first: `[CLS]` of BERT.
    First,
    /// The last: what a causal model makes of the whole text.
    Last,
}

/// How texts are embedded.
#[derive(Clone, Copy, Debug)]
pub struct Embedding {
    pub pooling: Pooling,
    /// To length one.
    pub normalize: bool,
    pub precision: Precision,
    /// Texts in a batch.
    pub batch_size: usize,
}

/// The vector of each text, in their order; texts of like length share a batch.
pub fn embed(
    model: &dyn Model,
    params: &ParamTree,
    texts: &[Vec<u32>],
    options: Embedding,
    device: Device,
) -> Result<Vec<Vec<f32>>> {
    let max = model.max_positions();
    if let Some(long) = texts.iter().find(|text| text.len() > max) {
        let prompt = long.len();
        return Err(Error::PromptTooLong { prompt, max });
    }
    let fwd = Forward::inference(params).with_precision(options.precision);
    let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
    let mut width = 0;
    let mut vectors = vec![Vec::new(); texts.len()];
    for batch in batches(&lengths, options.batch_size, usize::MAX) {
        let batch: Vec<usize> = batch.into_iter().filter(|&i| lengths[i] > 0).collect();
        if batch.is_empty() {
            continue;
        }
        let rows: Vec<&[u32]> = batch.iter().map(|&i| &texts[i][..]).collect();
        let input = input(&rows, device)?;
        let hidden = model.encode(&fwd, &input)?; // [B, T, H]
        let pooled = pool(&hidden, &rows, options.pooling)?; // [B, H]
        width = pooled.dims()[1];
        let pooled = pooled.to_vec::<f32>()?;
        for (&i, vector) in batch.iter().zip(pooled.chunks_exact(width)) {
            if let Some(&found) = vector.iter().find(|x| !x.is_finite()) {
                return Err(Error::BadNumber { found });
            }
            vectors[i] = match options.normalize {
                true => normalized(vector),
                false => vector.to_vec(),
            };
        }
    }
    if width == 0 {
        // No text has a token, but their vectors are as long as any.
        let input = input(&[&[0]], device)?;
        width = model.encode(&fwd, &input)?.dims()[2];
    }
    vectors.iter_mut().for_each(|it| it.resize(width, 0.0));
    Ok(vectors)
}

/// `hidden` `[B, T, H]` to f32 `[B, H]`.
fn pool(hidden: &Tensor, rows: &[&[u32]], pooling: Pooling) -> Result<Tensor> {
    let [b, t, width] = hidden.dims_of("embed")?;
    let hidden = hidden.to_dtype(DType::F32)?;
    let place = match pooling {
        Pooling::Mean => {
            let share = rows.iter().flat_map(|row| {
                let share = 1.0 / row.len() as f32;
                (0..t).map(move |at| if at < row.len() { share } else { 0.0 })
            });
            let share: Vec<f32> = share.collect();
            let share = Tensor::from_slice(&share, (b, t, 1), hidden.device())?;
            return Ok(hidden.mul(&share)?.sum(&[1])?);
        }
        Pooling::First => |_: &[u32]| 0,
        Pooling::Last => |row: &[u32]| row.len() - 1,
    };
    let places = rows.iter().enumerate();
    let places: Vec<u32> = places.map(|(i, row)| (i * t + place(row)) as u32).collect();
    let places = Tensor::from_slice(&places, b, hidden.device())?;
    Ok(hidden.reshape((b * t, width))?.index_select(&places, 0)?)
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let squares = vector.iter().map(|&x| f64::from(x) * f64::from(x));
    let norm = squares.sum::<f64>().sqrt().max(1e-12); // as torch's `normalize`
    let scaled = vector.iter().map(|&x| (f64::from(x) / norm) as f32);
    scaled.collect()
}
