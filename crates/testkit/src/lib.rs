//! What tests share: golden cases, gradient checks, the list of devices. A dev-dependency only, so it panics
//! where a test should fail.

mod devices;
mod golden;
mod gradient;

pub use devices::devices;
pub use golden::{Case, CurvePoint, Golden, Tensors, Tolerances, relative_l2};
pub use gradient::check_gradients;
