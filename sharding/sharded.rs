//! The parameters of a run at work: gathered where they are used, let go where they are not, and their gradients summed.
//!
//! A weight is gathered when a module first asks for it, and all of a unit's together when the backward pass enters it. A
//! unit is a block, or outside of blocks a module with the weights that are its own; what is used elsewhere too, as a tied
//! head is, stays until the pass is over.
//! What is kept for how long is the layout's to say ([`Gather`], [`Sums`]). Every rank runs the same modules in the same
//! order, so that all ask for the same weight at once: a rank without rows runs rows without a target.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tt_dist::{Axis, Communicator, Peers};
use tt_nn::{Hooks, ModulePath, ParamKind, ParamSpec, ParamTree};
use tt_tensor::{DType, Parameter, Precision, Shard, Tensor};

use crate::config::{Gather, Sums};
use crate::error::Result;
use crate::gatherer::{Gatherer, Gathering};
use crate::layout::Layout;
use crate::links;
use crate::shared::{Shared, is_rehearsed, sent_to_sum};
use crate::traffic::{Exchange, Traffic};

/// The parameters of a run, and the ranks that share them.
pub struct Sharded {
    world: Arc<dyn Communicator>,
    layout: Layout,
    /// In the order of the parameter tree.
    shared: Vec<Shared>,
    /// Into `shared`, by the parameter's path.
    index: HashMap<String, usize>,
    /// Of each unit, its parameters.
    units: HashMap<ModulePath, Unit>,
    /// Of parameters whose gradients have been summed so far in this step: this rank's part.
    summed: Mutex<HashMap<String, Tensor>>,
    traffic: Mutex<Traffic>,
    /// In the order in which they run.
    blocks: Vec<ModulePath>,
    gatherer: Gatherer,
    /// What is being gathered, by its place in `shared`.
    begun: Mutex<HashMap<usize, Gathering>>,
}

/// What is gathered and let go together.
#[derive(Default)]
struct Unit {
    /// Into `shared`.
    all: Vec<usize>,
    /// Those that gradients depend on: not a table that is looked up.
    for_backward: Vec<usize>,
}

impl Sharded {
    /// `params` hold the parts that `layout` gives this rank of `world`; products of them are made in `precision`. All ranks
    /// do this together.
    pub fn new(
        layout: Layout,
        params: &ParamTree,
        blocks: &[ModulePath],
        precision: Precision,
        world: Arc<dyn Communicator>,
    ) -> Result<Arc<Self>> {
        let mut groups = Groups::new(&layout, &*world);
        let mut shared = Vec::new();
        let mut units: HashMap<ModulePath, Unit> = HashMap::new();
        for (spec, parameter) in params.iter() {
            let axes = layout.axes(&spec.path);
            if axes.is_empty() {
                continue;
            }
            let Group {
                owners,
                gatherers,
                replicas,
                members,
                peers,
                replica_peers,
            } = groups.of(&axes)?;
            let parts = members.iter().map(|&rank| layout.shard(spec, rank));
            let parts: Arc<[Shard]> = if is_rehearsed(&parameter.local()) {
                Arc::default()
            } else {
                parts.collect()
            };
            let unit = units.entry(unit_of(&spec.path, blocks)).or_default();
            unit.all.push(shared.len());
            if spec.kind != ParamKind::Embedding {
                unit.for_backward.push(shared.len());
            }
            let in_bf16 = is_rounded(spec, parameter, precision);
            let parameter = Arc::clone(parameter);
            shared.push(Shared {
                parameter,
                owners,
                gatherers,
                replicas,
                in_bf16,
                peers,
                replica_peers,
                largest_part: layout.largest_part(&spec.path),
                parts,
            });
        }
        let paths = shared.iter().map(|it| it.parameter.path().to_owned());
        Ok(Arc::new(Self {
            index: paths.zip(0..).collect(),
            units,
            // What goes over links is queued on the chip in the order of the program, and hinders no computing there.
            gatherer: Gatherer::new(layout.prefetch() && !world.has_links())?,
            world,
            layout,
            shared,
            blocks: blocks.to_vec(),
            begun: Mutex::default(),
            summed: Mutex::default(),
            traffic: Mutex::default(),
        }))
    }

    /// Which part of each parameter is whose.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All ranks of the run.
    pub fn world(&self) -> &Arc<dyn Communicator> {
        &self.world
    }

    /// Whether gradients are summed as soon as they are complete: [`Sharded::sum_now`] is to be called with each.
    pub fn sums_at_once(&self) -> bool {
        self.layout.reduce() == Sums::MicroBatch
    }

    /// Sums the gradient of a parameter, which is complete, and keeps the own part of it.
    pub fn sum_now(&self, parameter: &Arc<Parameter>) -> Result<()> {
        // What all hold whole costs no less memory when it is summed.
        let Some(&i) = self.index.get(parameter.path()) else {
            return Ok(());
        };
        let Some(grad) = parameter.take_grad() else {
            return Ok(());
        };
        let part = self.own_part_of_sum(i, &grad)?;
        drop(grad);
        let mut summed = self.summed.lock().expect("no panic while summing");
        let part = match summed.remove(parameter.path()) {
            Some(so_far) => so_far.add(&part)?,
            None => part,
        };
        summed.insert(parameter.path().to_owned(), part);
        Ok(())
    }

    /// Makes all gradients those over the ranks, of each the own part. Whole weights are let go.
    pub fn sum_gradients(&self, params: &ParamTree) -> Result<()> {
        for (_, parameter) in params.iter() {
            let so_far = {
                let mut summed = self.summed.lock().expect("no panic while summing");
                summed.remove(parameter.path())
            };
            if let Some(part) = so_far {
                parameter.set_grad(part);
                continue;
            }
            let Some(grad) = parameter.take_grad() else {
                continue;
            };
            let part = match self.index.get(parameter.path()) {
                Some(&i) => self.own_part_of_sum(i, &grad)?,
                None => self.all_reduced(grad)?,
            };
            parameter.set_grad(part);
        }
        self.release();
        Ok(())
    }

    /// Forgets the gradients that have been summed so far, and lets whole weights go.
    pub fn forget(&self) {
        self.summed.lock().expect("no panic while summing").clear();
        self.release();
    }

    /// Whether this rank counts the parameter where each is to be counted once over all ranks.
    pub fn counts(&self, parameter: &Parameter) -> bool {
        match self.index.get(parameter.path()) {
            Some(&i) => self.shared[i].replicas.rank() == 0,
            None => self.world.rank() == 0,
        }
    }

    /// The sums of each value over all ranks.
    pub fn all_reduce(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        let exchange = Exchange::to_sum(self.peers(), values.len());
        self.count(|traffic| traffic.sums.add(exchange));
        Ok(self.world.all_reduce(values)?)
    }

    /// Whether it is so on any rank.
    pub fn any(&self, here: bool) -> Result<bool> {
        Ok(self.all_reduce(vec![f32::from(u8::from(here))])?[0] > 0.0)
    }

    /// A micro-batch is over: weights that no unit has let go are, unless they are kept for the step.
    pub fn end_pass(&self) {
        if self.layout.gather() == Gather::Block {
            self.release();
        }
    }

    /// Lets all whole weights go that are shared out.
    pub fn release(&self) {
        (0..self.shared.len()).for_each(|i| self.let_go(i));
    }

    /// Bytes of gradients that have been summed so far in this step.
    pub fn summed_bytes(&self) -> usize {
        let summed = self.summed.lock().expect("no panic while summing");
        let parts = summed.values();
        parts
            .map(|part| part.elem_count() * part.dtype().size_in_bytes())
            .sum()
    }

    /// What this rank has exchanged with others so far.
    pub fn traffic(&self) -> Traffic {
        *self.traffic.lock().expect("no panic while counting")
    }

    fn count(&self, count: impl FnOnce(&mut Traffic)) {
        count(&mut self.traffic.lock().expect("no panic while counting"));
    }

    /// All other ranks.
    fn peers(&self) -> Peers {
        self.layout.mesh().peers(&Axis::ALL)
    }

    fn own_part_of_sum(&self, i: usize, grad: &Tensor) -> Result<Tensor> {
        self.count(|traffic| self.shared[i].count_sum(traffic));
        self.shared[i].own_part_of_sum(grad)
    }

    /// The sum of what all hold whole.
    fn all_reduced(&self, grad: Tensor) -> Result<Tensor> {
        let (peers, elements) = (self.peers(), grad.elem_count());
        self.count(|traffic| {
            let sent = sent_to_sum(elements, peers.count() + 1);
            traffic.reduced_bytes += (sent * size_of::<f32>()) as u64;
            traffic.sums.add(Exchange::to_sum(peers, elements));
        });
        if is_rehearsed(&grad) {
            return Ok(grad);
        }
        if let Some(sum) = links::sum(&grad, &*self.world)? {
            return Ok(sum);
        }
        let sums = self.world.all_reduce(grad.to_vec::<f32>()?)?;
        Ok(Tensor::from_slice(&sums, grad.dims(), grad.device())?)
    }

    /// Begins to gather, unless that is done or begun; `is_ahead`: what is used later.
    fn begin(&self, i: usize, is_ahead: bool) {
        let parameter = &self.shared[i].parameter;
        let mut begun = self.begun.lock().expect("no panic while gathering");
        if !parameter.is_gathered() && !begun.contains_key(&i) {
            self.count(|traffic| self.shared[i].count_gather(traffic, is_ahead));
            begun.insert(i, self.gatherer.gather(&self.shared[i]));
        }
    }

    /// Makes a parameter whole, unless it is.
    fn gather(&self, i: usize) -> Result<()> {
        self.begin(i, false);
        match self.take_begun(i) {
            Some(whole) => Ok(self.shared[i].parameter.gather(whole.wait()?)?),
            None => Ok(()),
        }
    }

    /// Lets go what is whole of a parameter, or about to be.
    fn let_go(&self, i: usize) {
        if let Some(begun) = self.take_begun(i) {
            // It reads the own part, which the optimizer is about to change. Its error comes again with the next.
            let _ = begun.wait();
        }
        self.shared[i].parameter.release();
    }

    fn take_begun(&self, i: usize) -> Option<Gathering> {
        let mut begun = self.begun.lock().expect("no panic while gathering");
        begun.remove(&i)
    }

    /// Begins to gather the block that comes after `module`, or before it.
    fn look_ahead(&self, module: &ModulePath, next: impl Fn(usize) -> Option<usize>) {
        let position = self.blocks.iter().position(|block| block == module);
        let next = position.and_then(next).and_then(|at| self.blocks.get(at));
        if let Some(unit) = next.and_then(|block| self.units.get(block)) {
            unit.all.iter().for_each(|&i| self.begin(i, true));
        }
    }
}

impl Hooks for Sharded {
    fn before_use(&self, parameter: &Arc<Parameter>) -> tt_tensor::Result<()> {
        match self.index.get(parameter.path()) {
            Some(&i) => Ok(self.gather(i)?),
            None => Ok(()),
        }
    }

    fn enter_forward(&self, module: &ModulePath, _input: &Tensor) -> tt_nn::Result<()> {
        if self.layout.prefetch() {
            self.look_ahead(module, |at| Some(at + 1));
        }
        Ok(())
    }

    fn enter_recompute(&self, module: &ModulePath, _input: &Tensor) -> tt_nn::Result<()> {
        if self.layout.prefetch() {
            self.look_ahead(module, |at| at.checked_sub(1));
        }
        Ok(())
    }

    fn exit_forward(&self, module: &ModulePath, _output: &Tensor) -> tt_nn::Result<()> {
        self.leave(module);
        Ok(())
    }

    /// They are needed again at once.
    fn exit_recompute(&self, _module: &ModulePath, _output: &Tensor) -> tt_nn::Result<()> {
        Ok(())
    }

    fn enter_backward(
        &self,
        module: &ModulePath,
        _gradient: Option<&Tensor>,
    ) -> tt_tensor::Result<()> {
        if let Some(unit) = self.units.get(module) {
            for &i in &unit.for_backward {
                self.gather(i)?;
            }
        }
        if self.layout.prefetch() {
            self.look_ahead(module, |at| at.checked_sub(1));
        }
        Ok(())
    }

    fn exit_backward(
        &self,
        module: &ModulePath,
        _gradient: Option<&Tensor>,
    ) -> tt_tensor::Result<()> {
        self.leave(module);
        Ok(())
    }
}

impl Sharded {
    /// Lets the weights of a unit go.
    fn leave(&self, module: &ModulePath) {
        if self.layout.gather() == Gather::Block
            && let Some(unit) = self.units.get(module)
        {
            unit.all.iter().for_each(|&i| self.let_go(i));
        }
    }
}

/// Whether all that is made of a weight are products of bf16 numbers, so that it may be rounded before.
fn is_rounded(spec: &ParamSpec, parameter: &Parameter, precision: Precision) -> bool {
    let is_matrix = matches!(
        spec.kind,
        ParamKind::Linear | ParamKind::LinearInOut | ParamKind::Head
    );
    is_matrix && precision == Precision::Bf16 && parameter.local().dtype() == DType::F32
}

/// The unit that a parameter is of.
fn unit_of(path: &str, blocks: &[ModulePath]) -> ModulePath {
    let is_in = |block: &&ModulePath| {
        let rest = path.strip_prefix(block.as_str());
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    match blocks.iter().find(is_in) {
        Some(block) => block.clone(),
        None => {
            let module = path.rsplit_once('.').map_or("", |(module, _)| module);
            ModulePath::root().join(module)
        }
    }
}

/// Groups of ranks, made once for all parameters that need the same.
struct Groups<'a> {
    layout: &'a Layout,
    world: &'a dyn Communicator,
    made: HashMap<Vec<Axis>, Group>,
}

impl<'a> Groups<'a> {
    fn new(layout: &'a Layout, world: &'a dyn Communicator) -> Self {
        Self {
            layout,
            world,
            made: HashMap::new(),
        }
    }

    /// Those along `axes`, and those along the others.
    fn of(&mut self, axes: &[Axis]) -> Result<Group> {
        let mut axes = axes.to_vec();
        axes.sort();
        if let Some(group) = self.made.get(&axes) {
            return Ok(group.clone());
        }
        let others = Axis::ALL.into_iter().filter(|axis| !axes.contains(axis));
        let others: Vec<Axis> = others.collect();
        let (mesh, own) = (self.layout.mesh(), self.world.rank());
        let along = |axes: &[Axis]| self.world.split(mesh.color(own, axes));
        let color = mesh.color(own, &axes);
        let members = (0..mesh.num_ranks()).filter(|&rank| mesh.color(rank, &axes) == color);
        let group = Group {
            owners: along(&axes)?,
            gatherers: along(&axes)?,
            replicas: along(&others)?,
            members: members.collect(),
            peers: mesh.peers(&axes),
            replica_peers: mesh.peers(&others),
        };
        self.made.insert(axes, group.clone());
        Ok(group)
    }
}

/// The ranks that a parameter is a matter of.
#[derive(Clone)]
struct Group {
    owners: Arc<dyn Communicator>,
    gatherers: Arc<dyn Communicator>,
    replicas: Arc<dyn Communicator>,
    /// `owners`, as the mesh numbers them.
    members: Arc<[usize]>,
    peers: Peers,
    replica_peers: Peers,
}
