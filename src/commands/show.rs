//! `--cfg`: prints the configuration instead of running.

use std::process::ExitCode;

use anyhow::anyhow;
use tt_config::{Composition, Missing, Node, Value};

use crate::cli::{Args, Show};
use crate::failure::Failure;

pub(crate) fn run(composition: &Composition, part: Show, args: &Args) -> Result<ExitCode, Failure> {
    let tree = match (part, args.resolve) {
        (Show::Job, false) => composition.job(),
        (Show::Job, true) => composition.resolve(Missing::Keep)?,
        (Show::Hydra, resolve) => only_hydra(tree(composition, resolve)?),
        (Show::All, resolve) => tree(composition, resolve)?,
    };
    match &args.package {
        None => print!("{}", tree.to_yaml()),
        Some(package) => match tree.get(package) {
            Some(node) => print!("# @package {package}\n{}", node.to_yaml()),
            None => {
                let error = anyhow!("--package: there is no `{package}` in the config");
                return Err(Failure::Request(error));
            }
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn tree(composition: &Composition, resolve: bool) -> Result<Node, Failure> {
    if resolve {
        Ok(composition.resolved("", Missing::Keep)?)
    } else {
        Ok(composition.tree().clone())
    }
}

/// The tree without the job's own config.
pub(crate) fn only_hydra(mut tree: Node) -> Node {
    if let Value::Map(map) = &mut tree.value {
        map.retain(|key, _| key.as_str() == "hydra");
    }
    tree
}
