//! The optimizers of a run: from `trainer.optimizer`, `trainer.lr_scheduler` and `trainer.multiple_optimizers` to what
//! steps the parameters.
//!
//! They are read with the rest of the configuration, and made when there are parameters and the length of the run is
//! known. Problems of both point at the configuration.

use std::collections::HashSet;

use tt_config::{Composition, Diagnostics, Node, Section};
use tt_nn::{ParamSpec, ParamTree, PathGlob};
use tt_optimizers::{
    Assignment, MAIN, MakeOptimizer, Optimizers, ScheduleError, SchedulePlan, Scheduled, Warmup,
};
use tt_train::OptimizerGroupConfig;

use crate::failure::Failure;
use crate::plugins::Plugins;

const SEVERAL: &str = "trainer.multiple_optimizers";
const OPTIMIZER: &str = "trainer.optimizer";
const SCHEDULE: &str = "trainer.lr_scheduler";

/// The optimizers of a run, read and not yet made.
pub(crate) struct PlannedOptimizers(Vec<PlannedOptimizer>);

struct PlannedOptimizer {
    name: String,
    kind: String,
    /// `None` takes what no other matches.
    globs: Option<Vec<PathGlob>>,
    make: MakeOptimizer,
    schedule: SchedulePlan,
    /// Where the schedule is configured.
    schedule_key: String,
}

impl PlannedOptimizers {
    pub(crate) fn read(composition: &Composition, plugins: &Plugins) -> Result<Self, Diagnostics> {
        let several = composition.section(SEVERAL);
        let named = several.node().and_then(Node::as_map);
        let names = named.into_iter().flat_map(|map| map.keys());
        let mut problems = Diagnostics::new();
        let mut plans = Vec::new();
        for name in names {
            match PlannedOptimizer::read_named(&several, &name.to_string(), plugins) {
                Ok(plan) => plans.push(plan),
                Err(found) => found.iter().for_each(|one| problems.push(one.clone())),
            }
        }
        let without_globs: Vec<&str> = plans
            .iter()
            .filter(|plan| plan.globs.is_none())
            .map(|plan| plan.name.as_str())
            .collect();
        if let [first, .., last] = without_globs[..] {
            let why = format!(
                "the optimizers `{first}` and `{last}` would both have all parameters: give all but one of them `parameters`, a list of globs"
            );
            problems.push(several.error(why));
        }
        let is_complete = !without_globs.is_empty();
        if !problems.is_empty() {
            return Err(problems);
        }
        let main = composition.section(OPTIMIZER);
        let is_given = main.node().is_some_and(|node| !node.is_null());
        if !is_complete && (is_given || plans.is_empty()) {
            if plans.iter().any(|plan| plan.name == MAIN) {
                let why = format!(
                    "the name `{MAIN}` is that of `{OPTIMIZER}`, which has the other parameters: choose another"
                );
                return Err(several.section(MAIN).error(why).into());
            }
            plans.push(PlannedOptimizer::read(
                MAIN, None, &main, SCHEDULE, plugins,
            )?);
        }
        Ok(Self(plans))
    }

    /// Those of `trained` that must not be cut where ranks share parameters, by path.
    pub(crate) fn uncut(&self, trained: &[ParamSpec]) -> HashSet<String> {
        let globs: Vec<_> = self.0.iter().map(|plan| plan.globs.clone()).collect();
        let assigned = Assignment::new(trained.iter(), &globs);
        let uncut = trained.iter().zip(assigned.groups).filter(|(spec, group)| {
            let kind = group.map(|group| self.0[group].kind.as_str());
            kind.is_some_and(|kind| tt_optimizers::needs_whole(kind, spec))
        });
        uncut.map(|(spec, _)| spec.path.clone()).collect()
    }

    /// Whether a schedule depends on the number of steps of the run.
    pub(crate) fn needs_run_length(&self) -> bool {
        self.0.iter().any(|plan| plan.schedule.needs_run_length())
    }

    /// Of a schedule whose rate is still rising when the run ends: the steps that it rises, and their key.
    pub(crate) fn endless_warmup(&self, run_length: u64) -> Option<(u64, String)> {
        self.0.iter().find_map(|plan| match plan.schedule.warmup {
            Warmup::Steps(steps) if steps > 0 && steps >= run_length => {
                Some((steps, format!("{}.num_warmup_steps", plan.schedule_key)))
            }
            _ => None,
        })
    }

    /// Makes the optimizers for the trainable ones of `params`.
    pub(crate) fn build(
        self,
        params: &ParamTree,
        run_length: Option<u64>,
        composition: &Composition,
    ) -> Result<Optimizers, Failure> {
        let trainable = || {
            params
                .iter()
                .filter(|(_, parameter)| parameter.is_trainable())
        };
        let globs: Vec<_> = self.0.iter().map(|plan| plan.globs.clone()).collect();
        let assigned = Assignment::new(trainable().map(|(spec, _)| spec), &globs);
        self.check(&assigned, params, composition)?;
        let mut all = Vec::new();
        for (group, plan) in self.0.into_iter().enumerate() {
            let paths: HashSet<&str> = trainable()
                .zip(&assigned.groups)
                .filter(|(_, of)| **of == Some(group))
                .map(|((spec, _), _)| spec.path.as_str())
                .collect();
            if paths.is_empty() && globs.len() > 1 {
                continue; // the others have all parameters
            }
            let own = params.filtered(|spec| paths.contains(spec.path.as_str()));
            let optimizer = (plan.make)(&own).map_err(Failure::run)?;
            let schedule = plan.schedule.build(run_length, optimizer.lr());
            let schedule = schedule.map_err(|ScheduleError { key, why }| {
                let key = format!("{}.{key}", plan.schedule_key);
                let why = format!("`{key}`: {why}");
                Diagnostics::from(composition.section(&key).error(why))
            })?;
            all.push(Scheduled {
                name: plan.name,
                kind: plan.kind,
                params: Some(own),
                optimizer,
                schedule,
            });
        }
        Ok(Optimizers::new(all))
    }

    /// Every parameter is some optimizer's, and every glob is of use.
    fn check(
        &self,
        assigned: &Assignment,
        params: &ParamTree,
        composition: &Composition,
    ) -> Result<(), Diagnostics> {
        let mut problems = Diagnostics::new();
        for &(group, glob) in &assigned.idle {
            let key = format!("{SEVERAL}.{}.parameters", self.0[group].name);
            let patterns = composition.extract::<Vec<String>>(&key).unwrap_or_default();
            let pattern = patterns.get(glob).map_or("", String::as_str);
            let why = format!(
                "`{pattern}` matches no trainable parameter that another optimizer does not have"
            );
            problems.push(composition.section(&key).error(why));
        }
        let trainable = params
            .iter()
            .filter(|(_, parameter)| parameter.is_trainable());
        let left: Vec<&str> = trainable
            .zip(&assigned.groups)
            .filter(|(_, group)| group.is_none())
            .map(|((spec, _), _)| spec.path.as_str())
            .collect();
        if let [first, ..] = left[..] {
            let why = format!(
                "no optimizer has {} of the parameters, among them `{first}`: leave `parameters` out of one, or give `{OPTIMIZER}`",
                left.len()
            );
            problems.push(composition.section(SEVERAL).error(why));
        }
        problems.into_result(())
    }
}

impl PlannedOptimizer {
    fn read_named(
        several: &Section<'_>,
        name: &str,
        plugins: &Plugins,
    ) -> Result<Self, Diagnostics> {
        let section = several.section(name);
        let config: OptimizerGroupConfig = section.extract()?;
        let compile = |patterns: Vec<String>| {
            let compiled = patterns.iter().map(|pattern| {
                PathGlob::new(pattern)
                    .map_err(|error| section.section("parameters").error(error.to_string()))
            });
            compiled.collect::<Result<Vec<_>, _>>()
        };
        let globs = config.parameters.map(compile).transpose()?;
        let schedule_key = match config.lr_scheduler {
            Some(_) => section.section("lr_scheduler").path().to_owned(),
            None => SCHEDULE.to_owned(),
        };
        let optimizer = section.section("optimizer");
        Self::read(name, globs, &optimizer, &schedule_key, plugins)
    }

    fn read(
        name: &str,
        globs: Option<Vec<PathGlob>>,
        optimizer: &Section<'_>,
        schedule_key: &str,
        plugins: &Plugins,
    ) -> Result<Self, Diagnostics> {
        let entry = plugins.optimizers.choose(optimizer)?;
        let kwargs = optimizer
            .section("kwargs")
            .describe(plugins.optimizers.subject(entry));
        let make = (entry.build)(&kwargs)?;
        let schedule = SchedulePlan::read(&optimizer.composition().section(schedule_key))?;
        Ok(Self {
            name: name.to_owned(),
            kind: entry.name.to_owned(),
            globs,
            make,
            schedule,
            schedule_key: schedule_key.to_owned(),
        })
    }
}
