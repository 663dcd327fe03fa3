//! How the model of a run is spread over its ranks: from `device.ranks`, the meshes and `model.sharding` to a layout.

use tt_config::{Composition, Diagnostics, Node, Section};
use tt_dist::{Axis, Mesh, MeshError};
use tt_models::Model;
use tt_nn::ParamSpec;
use tt_sharding::{Gather, Layout, ShardingConfig, Sums};
use tt_tpu::Links;
use tt_train::TrainerConfig;

use crate::config::{AppConfig, Backend};
use crate::device::DeviceKind;
use crate::ranks;
use crate::setup::adapter::Adapter;
use crate::setup::optimization::PlannedOptimizers;

const KEY: &str = "model.sharding";

/// More would wait for each other and not compute.
const MAX_THREADS: usize = 256;

/// The layout of `model` over the ranks of the run.
pub(super) fn layout(
    config: &AppConfig,
    composition: &Composition,
    model: &dyn Model,
    adapter: Option<&Adapter>,
    optimizers: &PlannedOptimizers,
) -> Result<Layout, Diagnostics> {
    let mesh = Mesh::new(&config.ici_mesh, &config.dcn_mesh, config.num_ranks());
    let mesh = mesh.map_err(|error: MeshError| {
        let message = error.to_string();
        Diagnostics::from(composition.section(&error.key).error(message))
    })?;
    let section = composition.section(KEY);
    check_keys(&section)?;
    let sharding: ShardingConfig = section.extract()?;
    let refuse = |why: String| Diagnostics::from(section.error(format!("`{KEY}`: {why}")));
    let (names, mut params) = (model.tensor_names(), model.params());
    // A tied head is where the embedding is, whatever is said of it.
    let copies = names.copies().iter().map(|(name, _)| (*name).to_owned());
    let mut modules: Vec<String> = copies.collect();
    // Only what a path may name is looked for, as that takes a pass through the model.
    if !sharding.paths.is_empty() {
        let found = tt_models::modules(model).map_err(|error| refuse(error.to_string()))?;
        modules.extend(found.iter().map(|(path, _)| path.to_string()));
    }
    let trained = match adapter {
        None => params.clone(),
        Some(adapter) => {
            params.extend(adapter.lora.params());
            adapter.lora.trained()
        }
    };
    let uncut = optimizers.uncut(&trained);
    let uncut = |spec: &ParamSpec| uncut.contains(&spec.path);
    let saved = |path: &str| names.saved(path);
    let layout = Layout::new(&sharding, &params, saved, &modules, uncut, &mesh)
        .map_err(|error| refuse(error.to_string()))?;
    check_effect(&section, &sharding, &layout)?;
    Ok(layout)
}

/// A key that is without effect beside the others: what was meant by it is not what would be done.
fn check_effect(
    section: &Section<'_>,
    sharding: &ShardingConfig,
    layout: &Layout,
) -> Result<(), Diagnostics> {
    let mut problems = Diagnostics::new();
    let mut refuse = |key: &str, value: &str, why: &str| {
        let message = format!("`{KEY}.{key}`: {value} is without effect {why}");
        problems.push(section.section(key).error(message));
    };
    let (by_block, at_once) = (
        sharding.gather == Gather::Block,
        sharding.reduce == Sums::MicroBatch,
    );
    if layout.named_axes().is_empty() {
        let why = "where no parameter is shared out; name an axis in `every` or for a path";
        for (is_so, key, value) in [
            (by_block, "gather", "block"),
            (sharding.prefetch, "prefetch", "true"),
            (at_once, "reduce", "micro_batch"),
        ] {
            if is_so {
                refuse(key, value, why);
            }
        }
    } else if sharding.prefetch && !by_block {
        let why = "with `gather: step`, as weights stay whole; `gather: block` gathers the next block ahead";
        refuse("prefetch", "true", why);
    }
    problems.into_result(())
}

/// What is no path, and no key either, would be taken for a path.
fn check_keys(section: &Section<'_>) -> Result<(), Diagnostics> {
    const KEYS: [&str; 5] = ["type", "gather", "prefetch", "reduce", "every"];
    let mut problems = Diagnostics::new();
    let map = section.node().and_then(Node::as_map);
    for (key, node) in map.into_iter().flatten() {
        let key = key.to_string();
        let of_key = section.section(&key);
        if node.as_map().is_some() {
            let why = format!("`{key}` is a mapping; a path is written in one piece, with dots");
            problems.push(of_key.error(why));
        } else if key == "type" && !node.is_null() && node.as_str() != Some("spmd") {
            problems.push(of_key.error("`type` is spmd, or left out".to_owned()));
        } else if !KEYS.contains(&key.as_str()) && !node.is_null() && node.as_list().is_none() {
            let why = format!(
                "`{key}` is no key, and as a path of the model it has no list of axes; keys: {}",
                KEYS.join(", ")
            );
            problems.push(of_key.error(why));
        }
    }
    problems.into_result(())
}

/// What several ranks cannot do yet.
pub(super) fn check(
    config: &AppConfig,
    composition: &Composition,
    is_to_run: bool,
) -> Result<(), Diagnostics> {
    const RANKS: &str = "device.ranks";
    let ranks = config.num_ranks();
    let mut problems = Diagnostics::new();
    if let Some(started) = ranks::processes().map(|it| it.size())
        && started != ranks
    {
        let message = format!(
            "`{RANKS}`: {ranks}, and {started} processes were started: each is a rank; null takes what there is"
        );
        return Err(composition.section(RANKS).error(message).into());
    }
    if config.dist.backend == Backend::C2c {
        const KEY: &str = "dist.backend";
        let refuse = |why: String| composition.section(KEY).error(format!("`{KEY}`: {why}"));
        if config.device.kind == DeviceKind::Cpu {
            let why = "c2c are the links between TPUs, and this run is on the CPU; device=tpu, or dist.backend=host";
            problems.push(refuse(why.to_owned()));
        } else if ranks > 1
            && let Err(error) = Links::check(ranks)
        {
            problems.push(refuse(format!(
                "c2c: {error}; dist.backend=host takes any number"
            )));
        }
    }
    if ranks == 1 {
        return problems.into_result(());
    }
    let are_threads = config.device.kind == DeviceKind::Cpu && ranks::processes().is_none();
    if is_to_run && are_threads && ranks > MAX_THREADS {
        let message = format!(
            "`{RANKS}`: {ranks}: at most {MAX_THREADS} are threads of one process; with MPI, a rank may be a process of its own"
        );
        problems.push(composition.section(RANKS).error(message));
    }
    problems.into_result(())
}

/// Smaller micro-batches, where that shares the rows of a step out evenly among the ranks.
pub(super) fn evenly(trainer: TrainerConfig, layout: &Layout) -> TrainerConfig {
    let ranks = layout.mesh().num_ranks();
    let micro = trainer.micro_batch_size;
    if ranks == 1 {
        return trainer;
    }
    let is_even = |rows: &usize| {
        micro.is_multiple_of(*rows) && trainer.global_batch_size.is_multiple_of(rows * ranks)
    };
    let rows = (1..=micro).rev().find(is_even).unwrap_or(micro);
    TrainerConfig {
        micro_batch_size: rows,
        ..trainer
    }
}

/// What a user of several ranks may not expect.
pub(crate) fn warnings(trainer: &TrainerConfig, layout: &Layout) -> Vec<String> {
    let ranks = layout.mesh().num_ranks();
    let count = trainer.global_batch_size / trainer.micro_batch_size.max(1);
    let mut warnings = Vec::new();
    if !count.is_multiple_of(ranks) {
        warnings.push(format!(
            "warning: {ranks} ranks do not share out {} rows evenly: in a step some compute for nothing; make trainer.global_batch_size a multiple of {ranks}",
            trainer.global_batch_size
        ));
    }
    let named = layout.named_axes();
    let is_spread = |axis: &Axis| layout.mesh().size(*axis) > 1;
    if ranks > 1 && !named.is_empty() && !named.iter().any(is_spread) {
        let names: Vec<_> = named.iter().map(|axis| axis.name()).collect();
        warnings.push(format!(
            "warning: model.sharding shares parameters out along {}, where the meshes have one rank: each rank holds all of them whole",
            names.join(" and ")
        ));
    }
    if ranks > 1 && !layout.unnamed().is_empty() {
        warnings.push(format!(
            "warning: model.sharding has no path for {}: each rank holds them whole",
            layout.unnamed().join(", ")
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_out_evenly_where_they_can_be() {
        let config = r#"{"every": "fsdp"}"#;
        let config: ShardingConfig = serde_json::from_str(config).unwrap();
        let micro = |global: usize, micro: usize, ranks: usize| {
            let mesh = Mesh::new(&Default::default(), &data(ranks), ranks).unwrap();
            let layout = Layout::new(&config, &[], str::to_owned, &[], |_| false, &mesh).unwrap();
            let trainer = serde_json::json!({
                "type": "lm", "global_batch_size": global, "micro_batch_size": micro,
            });
            let trainer = evenly(serde_json::from_value(trainer).unwrap(), &layout);
            (trainer.micro_batch_size, warnings(&trainer, &layout).len())
        };
        assert_eq!(micro(8, 4, 1), (4, 0));
        assert_eq!(micro(8, 3, 1).0, 3, "which the trainer refuses");
        assert_eq!(micro(8, 4, 2), (4, 0));
        assert_eq!(micro(4, 4, 2), (2, 0));
        assert_eq!(micro(12, 4, 6), (2, 0));
        assert_eq!(micro(5, 1, 2), (1, 1));
    }

    fn data(ranks: usize) -> tt_dist::MeshAxes {
        tt_dist::MeshAxes {
            data: ranks as i64,
            ..Default::default()
        }
    }
}
