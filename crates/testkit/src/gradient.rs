//! Gradients of tracked functions against central finite differences.

use tt_tensor::{Device, Parameter, Tape, Tensor};

/// Checks the gradient of `sum(weights * f(inputs))` with respect to every input at every element.
///
/// `step` is the difference taken, `tolerance` the allowed error relative to the largest gradient of an
/// input (f32 differences of f32 functions: 1e-2 steps give about 1e-3).
pub fn check_gradients(
    device: Device,
    inputs: &[(&str, Vec<usize>, Vec<f32>)],
    step: f32,
    tolerance: f64,
    f: impl Fn(&[Tensor]) -> tt_tensor::Result<Tensor>,
) {
    let make = |values: &[Vec<f32>]| -> Vec<_> {
        inputs
            .iter()
            .zip(values)
            .map(|((name, shape, _), values)| {
                let tensor = Tensor::from_slice(values, shape.clone(), device).unwrap();
                Parameter::new(*name, tensor)
            })
            .collect()
    };
    let values: Vec<Vec<f32>> = inputs.iter().map(|(_, _, values)| values.clone()).collect();
    let tape = Tape::new();
    let parameters = make(&values);
    let tracked: Vec<Tensor> = parameters.iter().map(|p| tape.watch(p)).collect();
    let y = f(&tracked).unwrap();
    // Uneven weights, so that an error that cancels in a plain sum shows.
    let weights: Vec<f32> = (0..y.elem_count())
        .map(|i| 0.3 + ((i * 7919) % 13) as f32 / 10.0)
        .collect();
    let weigh = |y: &Tensor| -> f64 {
        let y = y.to_vec::<f32>().unwrap();
        y.iter()
            .zip(&weights)
            .map(|(y, w)| f64::from(*y) * f64::from(*w))
            .sum()
    };
    let weight = Tensor::from_slice(&weights, y.shape().clone(), device).unwrap();
    let loss = y.mul(&weight).unwrap().sum_all().unwrap();
    tape.backward(&loss).unwrap();

    for (i, (name, _, _)) in inputs.iter().enumerate() {
        let grad = parameters[i]
            .grad()
            .unwrap_or_else(|| panic!("no gradient for {name}"));
        let grad = grad.to_vec::<f32>().unwrap();
        let differences: Vec<f64> = (0..values[i].len())
            .map(|j| {
                let at = |delta: f32| {
                    let mut moved = values.clone();
                    moved[i][j] += delta;
                    let parameters = make(&moved);
                    let inputs: Vec<Tensor> = parameters.iter().map(|p| p.value()).collect();
                    weigh(&f(&inputs).unwrap())
                };
                (at(step) - at(-step)) / (2.0 * f64::from(step))
            })
            .collect();
        let scale = differences.iter().fold(1e-3, |max, d| d.abs().max(max));
        for (j, (g, d)) in grad.iter().zip(&differences).enumerate() {
            let error = (f64::from(*g) - d).abs() / scale;
            assert!(
                error <= tolerance,
                "gradient of {name}[{j}] is {g}, differences give {d} (relative error {error:.2e})"
            );
        }
    }
}
