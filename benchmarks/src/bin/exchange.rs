//! What ranks that are threads exchange in a second: whole weights from parts, and sums of gradients.
//!
//! `cargo run --release -p tt-benchmarks --bin exchange -- RANKS [MEGABYTES] [ROUNDS]` prints, for weights of so many
//! megabytes each, 10^9 bytes that a rank hears in a second in either. It is what `dist.ici_gb_per_second` is for a `plan`
//! of `device.ranks`: messages between threads are handed over, and what takes time is putting together and adding up.

use std::env;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use tt_dist::{Communicator, Mesh, MeshAxes, threads};
use tt_nn::{Hooks, Init, ParamKind, ParamSpec, ParamTree};
use tt_sharding::{Layout, Sharded, ShardingConfig};
use tt_tensor::{Device, Precision, Seed, Tensor};

/// Weights, one after another.
const COUNT: usize = 8;
const COLUMNS: usize = 1024;

fn main() -> Result<()> {
    let numbers = env::args().skip(1).map(|it| it.parse::<usize>());
    let numbers = numbers
        .collect::<Result<Vec<_>, _>>()
        .context("RANKS [MEGABYTES] [ROUNDS]")?;
    let number = |i: usize, default| numbers.get(i).copied().unwrap_or(default);
    let (ranks, megabytes, rounds) = (number(0, 2), number(1, 8), number(2, 10));
    let shape = vec![megabytes * 1_000_000 / size_of::<f32>() / COLUMNS, COLUMNS];
    let specs = (0..COUNT).map(|i| ParamSpec {
        path: format!("blocks.{i}.weight"),
        shape: shape.clone(),
        init: Init::Zeros,
        kind: ParamKind::Linear,
    });
    let specs: Vec<_> = specs.collect();
    let mesh = Mesh::new(&MeshAxes::default(), &MeshAxes::default(), ranks)?;
    let config: ShardingConfig = serde_json::from_str(r#"{"every": "fsdp", "gather": "block"}"#)?;
    let layout = Layout::new(&config, &specs, str::to_owned, &[], |_| false, &mesh)?;
    let measure = |world: Arc<dyn Communicator>| -> Result<[Vec<f64>; 2]> {
        let rank = world.rank();
        let params = ParamTree::init_sharded(&specs, Seed::new(0), Device::Cpu, &|spec| {
            layout.shard(spec, rank)
        })?;
        let world_of = Arc::clone(&world);
        let sharded = Sharded::new(layout.clone(), &params, &[], Precision::F32, world_of)?;
        let [mut gathers, mut sums] = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            world.barrier()?;
            let begun = Instant::now();
            for (_, parameter) in params.iter() {
                sharded.before_use(parameter)?;
                parameter.release();
            }
            gathers.push(begun.elapsed().as_secs_f64());
            for (_, parameter) in params.iter() {
                parameter.set_grad(Tensor::ones(shape.as_slice(), Device::Cpu)?);
            }
            world.barrier()?;
            let begun = Instant::now();
            sharded.sum_gradients(&params)?;
            sums.push(begun.elapsed().as_secs_f64());
        }
        Ok([gathers, sums])
    };
    let measured = thread::scope(|scope| {
        let measure = &measure;
        let started = threads::group(ranks, None).into_iter();
        let started: Vec<_> = started
            .map(|rank| scope.spawn(move || measure(rank)))
            .collect();
        let mut measured = started.into_iter().map(|it| it.join().expect("no panic"));
        let first = measured.next().context("no ranks");
        measured.for_each(drop);
        first
    })??;
    let heard = (COUNT * 4 * shape.iter().product::<usize>() * (ranks - 1) / ranks) as f64;
    for (what, mut seconds) in ["gathers", "sums"].into_iter().zip(measured) {
        seconds.sort_by(f64::total_cmp);
        let median = heard / seconds[seconds.len() / 2] / 1e9;
        let best = heard / seconds[0] / 1e9;
        writeln!(io::stdout(), "{what}: {median:.2} GB/s, at best {best:.2}")?;
    }
    Ok(())
}
