//! All parameters of a model by dotted path, in the order in which the model declares them.
//!
//! A parameter's initial values depend on the seed and its path only, so that adding a module does not
//! change the others.

use std::collections::HashMap;
use std::sync::Arc;

use tt_tensor::{Device, Parameter, Seed, Shape, Shard, Tensor};

use crate::error::{Error, Result};
use crate::forward::{Adapter, Hooks};

/// How a parameter's initial values are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    /// Normal with mean 0.
    Normal {
        /// The standard deviation.
        std: f32,
    },
    /// Uniform in `[-bound, bound)`.
    Uniform {
        /// The greatest absolute value.
        bound: f32,
    },
}

impl Init {
    fn check(self, path: &str) -> Result<()> {
        let (what, value) = match self {
            Self::Normal { std } => ("standard deviation", std),
            Self::Uniform { bound } => ("bound", bound),
            Self::Zeros | Self::Ones => return Ok(()),
        };
        if value.is_finite() {
            return Ok(());
        }
        let path = path.to_owned();
        Err(Error::Init { path, what, value })
    }
}

/// What a module says of one of its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Where the model has it: `layers.0.mlp.up_proj.weight`.
    pub path: String,
    /// The logical shape; what is held here of it, [`Parameter::shard`] tells.
    pub shape: Vec<usize>,
    /// What it begins with.
    pub init: Init,
    /// What it is, which decides about weight decay.
    pub kind: ParamKind,
}

/// What a parameter is to its module: policies (weight decay, adapters, optimizer groups) go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// The weight `[out, in]` of a linear layer.
    Linear,
    /// The weight `[in, out]` of a linear layer, as GPT-2 keeps it.
    LinearInOut,
    /// A table of vectors `[rows, dim]`, also where it is the output head too.
    Embedding,
    /// The output head `[vocab, hidden]`.
    Head,
    /// A bias or the scale of a norm.
    Vector,
}

impl ParamSpec {
    /// Initial values; those of one path do not depend on what else there is. Error: they would not be finite.
    pub fn draw(&self, seed: Seed, device: Device) -> Result<Tensor> {
        self.init.check(&self.path)?;
        let (shape, seed) = (self.shape.clone(), seed.fold_str(&self.path));
        Ok(match self.init {
            Init::Zeros => Tensor::zeros(shape, device)?,
            Init::Ones => Tensor::ones(shape, device)?,
            Init::Normal { std } => Tensor::randn(0.0, std, shape, seed, device)?,
            Init::Uniform { bound } => Tensor::rand(-bound, bound, shape, seed, device)?,
        })
    }

    /// The part `shard` of [`ParamSpec::draw`].
    pub fn draw_part(&self, seed: Seed, device: Device, shard: &Shard) -> Result<Tensor> {
        let whole = self.draw(seed, device)?;
        if shard.is_whole() {
            return Ok(whole);
        }
        // Without memory there are no values to pick from, and bringing them here would take the memory of the whole.
        if let Device::Meta(_) = device {
            return Ok(Tensor::zeros(shard.local_shape(), device)?);
        }
        let values = whole.to_vec::<f32>()?;
        let own: Vec<f32> = shard.runs().flat_map(|run| values[run].to_vec()).collect();
        Ok(Tensor::from_slice(&own, shard.local_shape(), device)?)
    }

    /// All of it, where nobody shares it.
    pub fn whole(&self) -> Shard {
        Shard::whole(self.shape.as_slice())
    }

    /// Whether weight decay applies: by the usual rule to matrices, not to biases and norms.
    pub fn decays(&self) -> bool {
        self.kind != ParamKind::Vector
    }
}

/// The parameters of a model. Cloning gives another handle to the same parameters.
#[derive(Clone)]
pub struct ParamTree(Arc<Inner>);

struct Inner {
    specs: Vec<ParamSpec>,
    parameters: Vec<Arc<Parameter>>,
    index: HashMap<String, usize>,
    adapter: Option<Arc<dyn Adapter>>,
    hooks: Vec<Arc<dyn Hooks>>,
}

impl ParamTree {
    /// Draws all parameters afresh.
    pub fn init(specs: &[ParamSpec], seed: Seed, device: Device) -> Result<Self> {
        Self::build(specs, |spec| spec.draw(seed, device))
    }

    /// Like [`ParamTree::init`], of each parameter the part that `shard` says, with the values that it has in the whole.
    pub fn init_sharded(
        specs: &[ParamSpec],
        seed: Seed,
        device: Device,
        shard: &dyn Fn(&ParamSpec) -> Shard,
    ) -> Result<Self> {
        Self::build_sharded(specs, shard, |spec, shard| {
            spec.draw_part(seed, device, shard)
        })
    }

    /// Takes each parameter's value from `value`, e.g. a checkpoint. Error: a value of another shape.
    pub fn build(
        specs: &[ParamSpec],
        mut value: impl FnMut(&ParamSpec) -> Result<Tensor>,
    ) -> Result<Self> {
        Self::build_sharded(specs, ParamSpec::whole, |spec, _| value(spec))
    }

    /// Like [`ParamTree::build`], of each parameter the part that `shard` says, in its local shape.
    pub fn build_sharded(
        specs: &[ParamSpec],
        shard: impl Fn(&ParamSpec) -> Shard,
        mut value: impl FnMut(&ParamSpec, &Shard) -> Result<Tensor>,
    ) -> Result<Self> {
        let mut parameters = Vec::with_capacity(specs.len());
        for spec in specs {
            let shard = shard(spec);
            let tensor = value(spec, &shard)?;
            let expected = Shape::from(shard.local_shape());
            if shard.shape() != spec.shape || tensor.shape() != &expected {
                return Err(Error::ParameterShape {
                    path: spec.path.clone(),
                    got: tensor.shape().clone(),
                    expected,
                });
            }
            parameters.push(Parameter::sharded(&spec.path, shard, tensor)?);
        }
        Self::new(specs.to_vec(), parameters, None)
    }

    fn new(
        specs: Vec<ParamSpec>,
        parameters: Vec<Arc<Parameter>>,
        adapter: Option<Arc<dyn Adapter>>,
    ) -> Result<Self> {
        let mut index = HashMap::with_capacity(specs.len());
        for (i, spec) in specs.iter().enumerate() {
            if index.insert(spec.path.clone(), i).is_some() {
                let path = spec.path.clone();
                return Err(Error::DuplicateParameter { path });
            }
        }
        Ok(Self(Arc::new(Inner {
            specs,
            parameters,
            index,
            adapter,
            hooks: Vec::new(),
        })))
    }

    /// These parameters and after them `weights`, with which `adapter` changes what linear layers give.
    pub fn with_adapter(&self, adapter: Arc<dyn Adapter>, weights: &ParamTree) -> Result<Self> {
        let specs = [&self.0.specs[..], &weights.0.specs].concat();
        let parameters = [&self.0.parameters[..], &weights.0.parameters].concat();
        Self::new(specs, parameters, Some(adapter))
    }

    /// The same parameters, with what linear layers give left as it is: the adapter's are there, and nothing uses them.
    #[must_use]
    pub fn without_adapter(&self) -> Self {
        Self(Arc::new(Inner {
            specs: self.0.specs.clone(),
            parameters: self.0.parameters.clone(),
            index: self.0.index.clone(),
            adapter: None,
            hooks: self.0.hooks.clone(),
        }))
    }

    /// Whether an adapter changes what linear layers give.
    pub fn has_adapter(&self) -> bool {
        self.0.adapter.is_some()
    }

    /// The same parameters, with hooks that every pass over them has, as their outermost.
    #[must_use]
    pub fn with_hooks(&self, hooks: Arc<dyn Hooks>) -> Self {
        Self(Arc::new(Inner {
            specs: self.0.specs.clone(),
            parameters: self.0.parameters.clone(),
            index: self.0.index.clone(),
            adapter: self.0.adapter.clone(),
            hooks: vec![hooks],
        }))
    }

    /// Lets `look` at the whole value of a parameter of this tree, wherever its parts are.
    pub fn with_whole<T>(
        &self,
        parameter: &Arc<Parameter>,
        look: impl FnOnce(&Tensor) -> T,
    ) -> Result<T> {
        for hooks in self.hooks() {
            hooks.before_use(parameter)?;
        }
        let found = look(&parameter.value());
        parameter.release();
        Ok(found)
    }

    pub(crate) fn hooks(&self) -> &[Arc<dyn Hooks>] {
        &self.0.hooks
    }

    pub(crate) fn adapter(&self) -> Option<&Arc<dyn Adapter>> {
        self.0.adapter.as_ref()
    }

    /// The parameter at a path. Error: there is none.
    pub fn get(&self, path: &str) -> Result<&Arc<Parameter>> {
        match self.0.index.get(path) {
            Some(&i) => Ok(&self.0.parameters[i]),
            None => Err(Error::UnknownParameter { path: path.into() }),
        }
    }

    /// Parameters with what their modules say of them, in declared order.
    pub fn iter(&self) -> impl Iterator<Item = (&ParamSpec, &Arc<Parameter>)> {
        self.0.specs.iter().zip(&self.0.parameters)
    }

    /// The parameters that `keep` picks, shared with this tree.
    pub fn filtered(&self, keep: impl Fn(&ParamSpec) -> bool) -> Self {
        let kept = self.iter().filter(|(spec, _)| keep(spec));
        let (specs, parameters): (Vec<_>, Vec<_>) =
            kept.map(|(s, p)| (s.clone(), p.clone())).unzip();
        let index = specs
            .iter()
            .map(|spec| spec.path.clone())
            .zip(0..)
            .collect();
        Self(Arc::new(Inner {
            specs,
            parameters,
            index,
            adapter: self.0.adapter.clone(),
            hooks: self.0.hooks.clone(),
        }))
    }

    /// Number of parameters' elements, wherever they are held.
    pub fn elem_count(&self) -> usize {
        self.0
            .specs
            .iter()
            .map(|spec| spec.shape.iter().product::<usize>())
            .sum()
    }
}
