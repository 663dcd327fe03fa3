//! An operation of a user's own.

use std::sync::Arc;

use tt_tensor::{DType, Device, Operation, Parameter, Result, Shape, Tape, Tensor, Undone, apply};

/// `y = x^3 w`, element by element, in `x`'s type; with a mistake or without.
#[derive(Clone, Copy, Default)]
pub struct Cube {
    pub mistake: Option<Mistake>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Mistake {
    Shape,
    NoGradient,
    GradientsShape,
    TooFew,
}

impl Operation for Cube {
    fn name(&self) -> &'static str {
        "cube"
    }

    fn result(&self, inputs: &[Tensor]) -> Result<(Shape, DType)> {
        Ok((inputs[0].shape().clone(), inputs[0].dtype()))
    }

    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let y = inputs[0].powf(3.0)?.mul(&inputs[1])?;
        if self.mistake == Some(Mistake::Shape) {
            return y.sum_all();
        }
        Ok(y)
    }

    fn backward(&self, undone: &Undone) -> Result<Vec<Option<Tensor>>> {
        let (x, w) = (&undone.inputs[0], &undone.inputs[1]);
        let dx = undone.dy.mul(&x.sqr()?.mul(w)?)?.affine(3.0, 0.0)?;
        let dw = undone.dy.mul(&x.powf(3.0)?)?;
        Ok(match self.mistake {
            Some(Mistake::NoGradient) => vec![Some(dx), None],
            Some(Mistake::GradientsShape) => vec![Some(dx.sum_all()?), Some(dw)],
            Some(Mistake::TooFew) => vec![Some(dx)],
            _ => vec![Some(dx), undone.wanted[1].then_some(dw)],
        })
    }
}

pub fn parameters(device: Device) -> [Arc<Parameter>; 2] {
    [("x", 3.0f32), ("w", 5.0)].map(|(name, scale)| {
        let values: Vec<f32> = (0..6).map(|i| (i as f32 - 2.5) / scale).collect();
        Parameter::new(name, Tensor::from_slice(&values, (2, 3), device).unwrap())
    })
}

/// The sum of the cubes, and the gradients.
pub fn run(cube: Cube, device: Device) -> Result<[Vec<f32>; 3]> {
    let [x, w] = parameters(device);
    let tape = Tape::new();
    let y = apply(cube, &[&tape.watch(&x), &tape.watch(&w)])?;
    tape.backward(&y.sum_all()?)?;
    let grad = |of: &Parameter| of.grad().expect("a gradient").to_vec();
    Ok([y.to_vec()?, grad(&x)?, grad(&w)?])
}
