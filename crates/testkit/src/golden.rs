//! Golden cases: right answers computed by Hugging Face transformers and PyTorch.
//!
//! They are in `tests/golden`, or in the folder that `TT_GOLDEN` names. `tests/golden/README.md` says what each file
//! holds and how its numbers were made.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Tensors of a file by name.
pub type Tensors = HashMap<String, candle_core::Tensor>;

/// A folder of one case.
pub struct Golden {
    pub dir: PathBuf,
}

/// `case.json`, as far as the tests read it.
#[derive(Deserialize)]
pub struct Case {
    pub hyperparameters: Hyperparameters,
    pub decay: Vec<String>,
    pub no_decay: Vec<String>,
    pub tolerances: Tolerances,
    #[serde(default)]
    pub rope_inv_freq: Vec<f32>,
    #[serde(default)]
    pub label_smoothing: f64,
    #[serde(default)]
    pub z_loss_coefficient: f64,
    /// Of preference training.
    pub preference: Option<PreferenceCase>,
    /// Parameters whose gradient is zero in exact arithmetic: what is computed is rounding noise.
    #[serde(default)]
    pub noise_gradients: Vec<String>,
    /// Where gradients of vectors are zero in exact arithmetic, as start and end.
    #[serde(default)]
    pub zero_gradient_slices: HashMap<String, [usize; 2]>,
}

/// The loss of pairs; rows 2i and 2i + 1 are chosen and rejected.
#[derive(Deserialize)]
pub struct PreferenceCase {
    pub kind: String,
    pub beta: f64,
    #[serde(default)]
    pub label_smoothing: f64,
    pub gamma: Option<f64>,
    pub needs_reference: bool,
}

#[derive(Deserialize)]
pub struct Hyperparameters {
    pub lr: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
    pub warmup_steps: u64,
    pub total_steps: u64,
    pub max_grad_norm: f64,
}

/// `None`: not to be compared.
#[derive(Deserialize)]
pub struct Tolerances {
    pub logits_max_abs: Option<f64>,
    #[serde(default)]
    pub logits_rel_l2_to_f32: Option<f64>,
    pub loss_rel: f64,
    pub grad_norm_rel: f64,
    pub grad_rel_l2_default: f64,
    pub grad_abs_l2_over_grad_norm: f64,
    pub grad_rel_l2_exceptions: HashMap<String, f64>,
    pub curve_loss_rel: f64,
    pub curve_grad_norm_rel: f64,
    pub update_rel_l2_default: Option<f64>,
    pub update_rel_l2_exceptions: HashMap<String, f64>,
}

/// One step of `curve.json`.
#[derive(Deserialize)]
pub struct CurvePoint {
    pub step: u64,
    pub lr: f64,
    pub loss: f64,
    pub grad_norm: f64,
}

impl Golden {
    pub fn open(case: &str) -> Self {
        let root = match std::env::var_os("TT_GOLDEN") {
            Some(dir) => PathBuf::from(dir),
            None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden"),
        };
        let dir = root.join(case);
        assert!(dir.is_dir(), "no golden case at {}", dir.display());
        Self { dir }
    }

    pub fn case(&self) -> Case {
        self.json("case.json")
    }

    pub fn json<T: DeserializeOwned>(&self, file: &str) -> T {
        let path = self.dir.join(file);
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// All tensors of `<name>.safetensors`.
    pub fn tensors(&self, name: &str) -> Tensors {
        let path = self.dir.join(format!("{name}.safetensors"));
        candle_core::safetensors::load(&path, &candle_core::Device::Cpu)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

/// `||a - b|| / ||b||`, in f64.
pub fn relative_l2(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let difference: f64 = a
        .iter()
        .zip(b)
        .map(|(a, b)| square(f64::from(*a) - f64::from(*b)))
        .sum();
    let norm: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (difference / norm.max(f64::MIN_POSITIVE)).sqrt()
}
