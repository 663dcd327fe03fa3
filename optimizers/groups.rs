//! The optimizers of a run: usually one, or several that share the parameters out among them.

use std::collections::HashSet;
use std::sync::Arc;

use tt_nn::{ParamSpec, ParamTree, PathGlob};
use tt_tensor::{Shard, Tensor};

use crate::error::{Error, Result};
use crate::{Metric, Optimizer, Schedule, Slot, StepContext};

/// The name of the optimizer of a run that has one.
pub const MAIN: &str = "main";

/// An optimizer with its schedule.
pub struct Scheduled {
    /// As checkpoints and messages call it.
    pub name: String,
    /// Its type as the table of optimizers calls it.
    pub kind: String,
    /// What it was made for; `None`: all there is.
    pub params: Option<ParamTree>,
    /// What changes the weights.
    pub optimizer: Box<dyn Optimizer>,
    /// What multiplies its rate.
    pub schedule: Schedule,
}

/// Optimizers that move together; every parameter is one's.
pub struct Optimizers(Vec<Scheduled>);

impl Optimizers {
    /// One for all parameters.
    pub fn single(optimizer: impl Optimizer + 'static, schedule: Schedule) -> Self {
        Self(vec![Scheduled {
            name: MAIN.to_owned(),
            kind: String::new(),
            params: None,
            optimizer: Box::new(optimizer),
            schedule,
        }])
    }

    /// Several, of which no two have the same name.
    pub fn new(all: Vec<Scheduled>) -> Self {
        Self(all)
    }

    /// The type of each, by name.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|it| (it.name.as_str(), it.kind.as_str()))
    }

    /// The rate of each at step `step`, counted from 0, by name.
    pub fn rates(&self, step: u64) -> impl Iterator<Item = (&str, f64)> {
        self.0
            .iter()
            .map(move |it| (it.name.as_str(), it.rate(step)))
    }

    /// Steps all of them as step `step`, counted from 0, on `params`. `grad_scale` and `counted` are the
    /// [`StepContext`]'s.
    ///
    /// Errors name the optimizer, also one that breaks its contract, as far as that shows without reading a weight.
    pub fn step(
        &mut self,
        params: &ParamTree,
        step: u64,
        grad_scale: &Tensor,
        wants_metrics: bool,
        counted: Option<Arc<HashSet<String>>>,
    ) -> Result<()> {
        for it in &mut self.0 {
            let context = StepContext {
                lr: it.rate(step),
                grad_scale: grad_scale.clone(),
                wants_metrics,
                counted: counted.clone(),
            };
            it.step(&context).map_err(|error| it.named(error))?;
        }
        let mut left = params.iter().filter(|(_, it)| it.grad().is_some());
        match left.next() {
            None => Ok(()),
            Some((spec, _)) => {
                let why = format!(
                    "it has not stepped `{}`: the gradient is still there, which `step` is to take",
                    spec.path
                );
                Err(self.blame(&spec.path, Error::Contract(why)))
            }
        }
    }

    /// The name of the optimizer that has this parameter.
    pub fn owner(&self, path: &str) -> Option<String> {
        self.0.iter().find(|it| it.has(path)).map(Scheduled::title)
    }

    fn blame(&self, path: &str, error: Error) -> Error {
        match self.0.iter().find(|it| it.has(path)) {
            Some(it) => it.named(error),
            None => error,
        }
    }

    /// [`Optimizer::metrics`] of all; of several, under `<name>_<metric>`.
    pub fn metrics(&self) -> Result<Vec<Metric>> {
        let mut all = Vec::new();
        for it in &self.0 {
            for metric in it.optimizer.metrics()? {
                let name = self.qualified(&it.name, &metric.name);
                all.push(Metric { name, ..metric });
            }
        }
        Ok(all)
    }

    /// `metric` itself of a single optimizer, `<name>_<metric>` of one among several.
    pub fn qualified(&self, name: &str, metric: &str) -> String {
        match self.0.len() {
            1 => metric.to_owned(),
            _ => format!("{name}_{metric}"),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Steps made so far: as many by each.
    pub fn steps(&self) -> u64 {
        self.0.first().map_or(0, |it| it.optimizer.steps())
    }

    /// The state, by optimizer.
    pub fn slots(&self) -> impl Iterator<Item = (&str, Slot)> {
        let of_one = |it: &Scheduled| it.optimizer.slots();
        self.0
            .iter()
            .flat_map(move |it| of_one(it).into_iter().map(|slot| (it.name.as_str(), slot)))
    }

    /// The state twice under one name, of which one would be lost. Error: it and the optimizer.
    pub fn check_slots(&self) -> Result<()> {
        let mut seen = HashSet::new();
        for (i, it) in self.0.iter().enumerate() {
            for slot in it.optimizer.slots() {
                if !seen.insert((i, slot.name, slot.parameter.clone())) {
                    let why = format!("it has two states `{}` of `{}`", slot.name, slot.parameter);
                    return Err(it.named(Error::Contract(why)));
                }
            }
        }
        Ok(())
    }

    /// Takes up a saved state. `load` gives the saved value of (optimizer, parameter path, slot), this part of it.
    ///
    /// Errors name the optimizer, also one that leaves out a part of what it calls its state.
    pub fn restore(
        &mut self,
        steps: u64,
        load: &mut dyn FnMut(&str, &str, &'static str, &Shard) -> Result<Tensor>,
    ) -> Result<()> {
        for it in &mut self.0 {
            it.restore(steps, load).map_err(|error| it.named(error))?;
        }
        Ok(())
    }
}

impl Scheduled {
    fn step(&mut self, context: &StepContext) -> Result<()> {
        if !context.lr.is_finite() {
            let why = format!("its learning rate is {}", context.lr);
            return Err(Error::Contract(why));
        }
        let before = self.optimizer.steps();
        self.optimizer.step(context)?;
        let after = self.optimizer.steps();
        if after != before + 1 {
            let why = format!("its `steps` is {after} after a step and was {before} before it");
            return Err(Error::Contract(why));
        }
        Ok(())
    }

    fn restore(
        &mut self,
        steps: u64,
        load: &mut dyn FnMut(&str, &str, &'static str, &Shard) -> Result<Tensor>,
    ) -> Result<()> {
        let Self {
            name, optimizer, ..
        } = self;
        let own = optimizer.slots();
        let mut taken = HashSet::new();
        optimizer.restore(steps, &mut |parameter, slot, shard| {
            taken.insert((parameter.to_owned(), slot));
            load(name, parameter, slot, shard)
        })?;
        for slot in own {
            if !taken.contains(&(slot.parameter.clone(), slot.name)) {
                return Err(Error::State {
                    parameter: slot.parameter,
                    slot: slot.name,
                    why: "its `restore` does not take it up from the checkpoint".to_owned(),
                });
            }
        }
        if optimizer.steps() != steps {
            let why = format!(
                "its `steps` is {} after a checkpoint of {steps} is restored",
                optimizer.steps()
            );
            return Err(Error::Contract(why));
        }
        Ok(())
    }

    fn has(&self, path: &str) -> bool {
        let params = self.params.as_ref();
        params.is_none_or(|params| params.get(path).is_ok())
    }

    /// `adamw.AdamW`, or `` `rest` (adamw.AdamW) `` where the configuration has given it a name.
    fn title(&self) -> String {
        match (self.name.as_str(), self.kind.as_str()) {
            (MAIN, "") => MAIN.to_owned(),
            (MAIN, kind) => kind.to_owned(),
            (name, kind) => format!("`{name}` ({kind})"),
        }
    }

    fn named(&self, error: Error) -> Error {
        Error::In {
            optimizer: self.title(),
            error: Box::new(error),
        }
    }

    fn rate(&self, step: u64) -> f64 {
        self.optimizer.lr() * self.schedule.factor(step)
    }
}

/// Which group each parameter belongs to: the first with a glob that matches its path, else the one without globs.
pub struct Assignment {
    /// By parameter; `None` where no group takes it.
    pub groups: Vec<Option<usize>>,
    /// Globs that get no parameter: (group, position).
    pub idle: Vec<(usize, usize)>,
}

impl Assignment {
    /// `None` in `groups` stands for what no glob matches; at most one.
    pub fn new<'a>(
        specs: impl Iterator<Item = &'a ParamSpec>,
        groups: &[Option<Vec<PathGlob>>],
    ) -> Self {
        let rest = groups.iter().position(Option::is_none);
        let mut used: Vec<Vec<bool>> = groups
            .iter()
            .map(|globs| vec![false; globs.as_ref().map_or(0, Vec::len)])
            .collect();
        let mut take = |path: &str| {
            for (group, globs) in groups.iter().enumerate() {
                let globs = globs.as_deref().unwrap_or_default();
                let matching = (0..globs.len()).filter(|&i| globs[i].matches(path));
                let matching: Vec<usize> = matching.collect();
                if !matching.is_empty() {
                    matching.iter().for_each(|&i| used[group][i] = true);
                    return Some(group);
                }
            }
            rest
        };
        let assigned = specs.map(|spec| take(&spec.path)).collect();
        let idle = used.iter().enumerate().flat_map(|(group, used)| {
            let idle = used.iter().enumerate().filter(|(_, used)| !**used);
            idle.map(move |(glob, _)| (group, glob))
        });
        Self {
            groups: assigned,
            idle: idle.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdamW, AdamWConfig};
    use tt_nn::{Init, ParamKind};
    use tt_tensor::{Device, Seed};

    fn assign(groups: &[Option<&[&str]>]) -> Assignment {
        let paths = [
            "embed.weight",
            "layers.0.a.weight",
            "layers.0.a.bias",
            "norm.weight",
        ];
        let specs = paths.map(|path| ParamSpec {
            path: path.to_owned(),
            shape: vec![1],
            init: Init::Ones,
            kind: ParamKind::Vector,
        });
        let compile = |globs: &[&str]| {
            let globs = globs.iter().map(|glob| PathGlob::new(glob).unwrap());
            globs.collect::<Vec<_>>()
        };
        let groups: Vec<_> = groups.iter().map(|globs| globs.map(compile)).collect();
        Assignment::new(specs.iter(), &groups)
    }

    #[test]
    fn the_first_group_that_matches_takes_a_parameter_and_the_rest_goes_to_the_one_without_globs() {
        let found = assign(&[Some(&["layers.**.weight"]), None, Some(&["**.weight"])]);
        assert_eq!(found.groups, [Some(2), Some(0), Some(1), Some(2)]);
        assert!(found.idle.is_empty());
        let found = assign(&[Some(&["layers.**"])]);
        assert_eq!(found.groups, [None, Some(0), Some(0), None]);
    }

    #[test]
    fn a_glob_that_gets_nothing_is_idle_also_where_an_earlier_one_took_all_it_matches() {
        let found = assign(&[Some(&["**"]), Some(&["norm.*"])]);
        assert_eq!(found.idle, [(1, 0)]);
        let found = assign(&[Some(&["norm.*", "nrom.*"]), None]);
        assert_eq!(found.idle, [(0, 1)]);
    }

    fn scheduled(name: &str, glob: &str) -> (Scheduled, ParamTree) {
        let specs = ["layers.weight", "norm.weight"].map(|path| ParamSpec {
            path: path.to_owned(),
            shape: vec![1],
            init: Init::Ones,
            kind: ParamKind::Vector,
        });
        let all = ParamTree::init(&specs, Seed::new(0), Device::Cpu).unwrap();
        let glob = PathGlob::new(glob).unwrap();
        let params = all.filtered(|spec| glob.matches(&spec.path));
        let optimizer = AdamW::new(AdamWConfig::new(0.1), &params).unwrap();
        let scheduled = Scheduled {
            name: name.to_owned(),
            kind: "adamw.AdamW".to_owned(),
            params: Some(params),
            optimizer: Box::new(optimizer),
            schedule: Schedule::constant(),
        };
        (scheduled, all)
    }

    #[test]
    fn of_several_optimizers_each_has_its_parameters_rate_and_metrics_under_its_name() {
        let one = Optimizers::new(vec![scheduled(MAIN, "**").0]);
        assert_eq!((one.len(), one.is_empty()), (1, false));
        assert_eq!(one.qualified(MAIN, "lr"), "lr");
        let both = ["layers", "norm"].map(|name| scheduled(name, &format!("{name}.*")).0);
        let mut both = Optimizers::new(both.into());
        assert_eq!((both.len(), both.is_empty()), (2, false));
        assert!(Optimizers::new(Vec::new()).is_empty());
        assert_eq!(both.qualified("norm", "lr"), "norm_lr");
        assert!(
            both.kinds()
                .eq([("layers", "adamw.AdamW"), ("norm", "adamw.AdamW")])
        );
        assert!(both.rates(3).eq([("layers", 0.1), ("norm", 0.1)]));
        assert_eq!(both.owner("norm.weight").unwrap(), "`norm` (adamw.AdamW)");
        assert_eq!(both.owner("embed.weight"), None);

        let (_, params) = scheduled(MAIN, "**");
        let scale = Tensor::ones(1, Device::Cpu).unwrap();
        both.step(&params, 0, &scale, true, None).unwrap();
        let names: Vec<_> = both
            .metrics()
            .unwrap()
            .into_iter()
            .map(|metric| metric.name)
            .collect();
        let expected = [
            "layers_update_rms",
            "layers_update_ratio",
            "norm_update_rms",
            "norm_update_ratio",
        ];
        assert_eq!(names, expected);
        let slots: Vec<_> = both.slots().map(|(name, slot)| (name, slot.name)).collect();
        let expected = ["layers", "norm"].map(|name| [(name, "exp_avg"), (name, "exp_avg_sq")]);
        assert_eq!(slots, expected.concat());
    }

    #[test]
    fn a_state_that_does_not_fit_is_told_from_other_errors_whoever_it_is_of() {
        let state = || Error::State {
            parameter: "w".to_owned(),
            slot: "exp_avg",
            why: "[2] instead of [1]".to_owned(),
        };
        let optimizer = scheduled(MAIN, "**").0;
        let contract = || Error::Contract("it does not count".to_owned());
        assert!(state().is_state() && optimizer.named(state()).is_state());
        assert!(!contract().is_state() && !optimizer.named(contract()).is_state());
    }
}
