//! What the kernels of a TPU ask of its engines, as a table: of a training step of Qwen2-0.5B, counted where no engine is
//! (`crates/tpu/roofline`), or of what ran on the emulator with `TT_TPU_COUNTS=FILE`.
//!
//! Cycles are of 1 ns and computed from published rates (`crates/tpu/kernels/counts.h`); nothing is timed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use tt_kernels::{Chip, Target};

use crate::root;

/// The file that kernels add their counts to.
const VARIABLE: &str = "TT_TPU_COUNTS";

/// Whose kernels count.
const EMULATOR: Target = Target::Emulator(Chip::Bm1690);

/// `[--counts FILE]`.
pub fn print(arguments: &[&str]) -> Result<()> {
    let lines = match *arguments {
        [] => dry_run()?,
        ["--counts", file] => fs::read_to_string(file).with_context(|| file.to_owned())?,
        _ => bail!("`{}`: nothing, or --counts FILE", arguments.join(" ")),
    };
    print!("{}", table(&lines)?);
    Ok(())
}

/// Compiles the kernels with their launches of a step, and runs them.
fn dry_run() -> Result<String> {
    let aside = tempfile::tempdir()?;
    let at = |name: &str| aside.path().join(name);
    let (compiler, sources) = (EMULATOR.compiler()?, root().join("crates/tpu"));
    // Leaves a stub of the device's functions beside the module.
    EMULATOR.compile(&compiler, &sources.join("kernels"), &at("kernels.so"))?;
    let mut compile = Command::new(&compiler);
    compile.args([
        "-O1",
        "-std=gnu11",
        "-DEMULATOR",
        "-Wall",
        "-Wno-unused-function",
    ]);
    for entry in fs::read_dir(sources.join("roofline"))? {
        let path = entry?.path();
        compile.args(
            path.extension()
                .is_some_and(|it| it == "c")
                .then_some(&path),
        );
    }
    compile.arg("-o").arg(at("dry_run"));
    compile.arg("-L").arg(aside.path());
    compile.arg(format!("-l:{}", EMULATOR.vendor_library()));
    compile.arg(format!("-Wl,-rpath,{}", aside.path().display()));
    ensure!(
        compile.arg("-lm").status()?.success(),
        "the dry run was not compiled"
    );
    let mut run = Command::new(at("dry_run"));
    let ran = run.env(VARIABLE, at("counts")).status()?;
    ensure!(ran.success(), "the dry run: {ran}");
    read(&at("counts"))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Of a kernel, over all its launches.
#[derive(Debug, Default)]
struct Cost {
    launches: BTreeSet<u64>,
    commands: u64,
    loaded: u64,
    stored: u64,
    products: u64,
    /// Of the busiest core of each launch: DMA, products, all arithmetic, and both engines together.
    cycles: [u64; 4],
}

impl Cost {
    fn row(&self, name: &str) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let [dma, products, arithmetic, together] = self.cycles.map(|it| it as f64 / 1e3);
        let bound = match dma > arithmetic {
            true => "memory",
            false if products > arithmetic / 2.0 => "products",
            false => "vectors",
        };
        let flop = 2.0 * self.products as f64;
        let intensity = flop / (self.loaded + self.stored).max(1) as f64;
        format!(
            "| {name} | {} | {} | {:.1} | {:.1} | {:.2} | {intensity:.0} | {dma:.0} | {products:.0} | {arithmetic:.0} | {together:.0} | {bound} |\n",
            self.launches.len(),
            self.commands,
            mib(self.loaded),
            mib(self.stored),
            flop / 1e9,
        )
    }

    fn add(&mut self, other: &Self) {
        self.launches.extend(&other.launches);
        self.commands += other.commands;
        self.loaded += other.loaded;
        self.stored += other.stored;
        self.products += other.products;
        for (sum, cycles) in self.cycles.iter_mut().zip(other.cycles) {
            *sum += cycles;
        }
    }
}

/// Kernels by what they take, the most first.
fn table(lines: &str) -> Result<String> {
    let mut costs = BTreeMap::<&str, Cost>::new();
    // Cores work side by side: a launch takes as long as its last.
    let mut of_launches = HashMap::<(&str, u64), [u64; 4]>::new();
    for line in lines.lines() {
        let fields: HashMap<&str, &str> = line
            .split(' ')
            .filter_map(|it| it.split_once('='))
            .collect();
        let number = |name: &str| -> Result<u64> {
            let text = fields
                .get(name)
                .with_context(|| format!("no {name}: {line}"))?;
            text.parse().with_context(|| line.to_owned())
        };
        let kernel = *fields
            .get("kernel")
            .with_context(|| format!("no kernel: {line}"))?;
        let cost = costs.entry(kernel).or_default();
        let launch = number("launch")?;
        cost.launches.insert(launch);
        cost.commands += number("dma_commands")? + number("commands")?;
        cost.loaded += number("loaded")?;
        cost.stored += number("stored")?;
        cost.products += number("products")?;
        let cycles = [
            number("dma_cycles")?,
            number("product_cycles")?,
            number("arithmetic_cycles")?,
            number("cycles")?,
        ];
        let longest = of_launches.entry((kernel, launch)).or_default();
        for (longest, cycles) in longest.iter_mut().zip(cycles) {
            *longest = cycles.max(*longest);
        }
    }
    ensure!(!costs.is_empty(), "nothing was counted");
    for ((kernel, _), cycles) in of_launches {
        let cost = costs.entry(kernel).or_default();
        for (sum, cycles) in cost.cycles.iter_mut().zip(cycles) {
            *sum += cycles;
        }
    }
    let mut total = Cost::default();
    costs.values().for_each(|cost| total.add(cost));
    let mut costs: Vec<_> = costs.into_iter().collect();
    costs.sort_by_key(|(_, cost)| std::cmp::Reverse(cost.cycles[3]));
    let mut text = "\
| kernel | launches | commands | MiB loaded | MiB stored | GFLOP of products | FLOP a byte | DMA µs | products µs | arithmetic µs | together µs | bound by |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"
    .to_owned();
    for (kernel, cost) in &costs {
        text += &cost.row(&format!("`{kernel}`"));
    }
    text += &total.row("all");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_takes_as_long_as_its_last_core() {
        let line = |launch: u32, core: u32, cycles: u32| {
            format!(
                "launch={launch} core={core} kernel=fill loaded=0 stored=1048576 products=0 dma_commands=2 commands=0 dma_cycles={cycles} product_cycles=0 arithmetic_cycles=0 cycles={cycles}\n"
            )
        };
        let text = table(&(line(1, 0, 2000) + &line(1, 1, 5000) + &line(2, 0, 1000))).unwrap();
        let row = "| `fill` | 2 | 6 | 0.0 | 3.0 | 0.00 | 0 | 6 | 0 | 0 | 6 | memory |";
        assert_eq!(text.lines().nth(2), Some(row));
        assert!(table("").is_err());
        assert!(table("launch=1 kernel=fill").is_err());
    }
}
