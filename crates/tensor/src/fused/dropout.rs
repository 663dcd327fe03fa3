//! Dropout: keeps an element with probability `1 - p` and divides it by that, else gives 0.
//!
//! Which elements are kept is a function of the key and the element's position only, so the mask is not
//! stored: the backward pass computes it again. Source: Srivastava et al. 2014.

use tt_cpu::{FusedOps, RngKey};

use crate::device::on_device;
use crate::error::{Error, Result};
use crate::fused::{alloc_like, dense, finish};
use crate::tape::record;
use crate::tensor::Tensor;

/// `x` with each element kept with probability `1 - p` and divided by that, or 0 else; of `x`'s shape and type.
///
/// Which are kept is a function of `rng` and of the element's position alone: a key for each place and step
/// (`fwd.seed("name").key()`), or the same elements fall out again. Error: `p` outside `[0, 1)`.
pub fn dropout(x: &Tensor, p: f32, rng: RngKey) -> Result<Tensor> {
    if !(0.0..1.0).contains(&p) {
        let why = format!("probability {p} is not in [0, 1)");
        return Err(Error::invalid("dropout", why));
    }
    if p == 0.0 {
        return Ok(x.clone());
    }
    let x = dense("dropout", x)?;
    let y = mask(&x, p, rng)?;
    record("dropout", &[&x], y, move |g| {
        let dy = g.output().contiguous()?;
        g.add(0, mask(&dy, p, rng)?)
    })
}

fn mask(x: &Tensor, p: f32, rng: RngKey) -> Result<Tensor> {
    let mut y = alloc_like(x)?;
    on_device!(x.device, S, {
        S::dropout(x.read().view()?, p, rng, y.of::<S>()?)?
    });
    Ok(finish(y, x))
}
