//! Composes a tree of configs and prints it: `compose DIRECTORY CONFIG [ARGUMENT...]`.
//!
//! `--info NAME` among the arguments prints `origins`, `defaults`, `defaults-tree`, `searchpath` or
//! `config` instead; `-m` expands a sweep.

use std::error::Error;

use tt_config::{Composer, Missing};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.len() < 2 {
        return Err("usage: compose DIRECTORY CONFIG [ARGUMENT...]".into());
    }
    let rest = arguments.split_off(2);
    let composer = Composer::new(&arguments[1]).directory("main", &arguments[0]);
    let info = rest.iter().position(|argument| argument == "--info");
    let name = info.and_then(|at| rest.get(at + 1)).cloned();
    let is_flag = |at: usize| info.is_some_and(|info| at == info || at == info + 1);
    let is_sweep = rest.iter().any(|argument| argument == "-m");
    let overrides: Vec<String> = rest
        .iter()
        .enumerate()
        .filter(|(at, argument)| !is_flag(*at) && *argument != "-m")
        .map(|(_, argument)| argument.clone())
        .collect();
    let result = (|| {
        if is_sweep {
            for job in composer.sweep(&overrides)? {
                println!("# {}", job.overrides.join(" "));
                print!("{}", job.composition.resolve(Missing::Keep)?.to_yaml());
            }
            return Ok(());
        }
        let composition = composer.compose(&overrides)?;
        print!(
            "{}",
            match name.as_deref() {
                Some("origins") => composition.origins("")?,
                Some("defaults") => composition.defaults_list(),
                Some("defaults-tree") => composition.defaults_tree(),
                Some("searchpath") => composition.search_path(),
                Some("config") => composition.config_info(),
                _ => composition.resolve(Missing::Keep)?.to_yaml(),
            }
        );
        Ok::<(), tt_config::Diagnostics>(())
    })();
    if let Err(problems) = result {
        eprintln!("{problems}");
        std::process::exit(2);
    }
    Ok(())
}
