//! Where the parts of each parameter are: from `model.sharding` and a mesh to boxes.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use tt_dist::{Axis, Mesh};
use tt_nn::{ParamSpec, PathGlob};
use tt_tensor::Shard;

use crate::config::{AxisNames, Gather, ShardingConfig, Sums};
use crate::error::{Error, Result};

/// By dim, the axes that share it out.
type Placement = Vec<Vec<Axis>>;

/// Which part of each parameter is whose.
///
/// A dim of n is cut at `i * n / ranks`: parts differ by one at most, and are empty where there are more ranks than n.
#[derive(Clone, Debug)]
pub struct Layout {
    mesh: Mesh,
    /// By path; what is not here is held whole by all.
    placements: HashMap<String, (Vec<usize>, Placement)>,
    /// Of what must not be cut: the place along its axes of the one that holds the whole.
    owners: HashMap<String, usize>,
    gather: Gather,
    prefetch: bool,
    reduce: Sums,
    /// Those that no path of the configuration names, `*` for any number.
    unnamed: Vec<String>,
    /// That the configuration names for some parameter, however many ranks there are along them.
    named_axes: BTreeSet<Axis>,
}

impl Layout {
    /// Shares out `params` over `mesh`: those that are `uncut` whole, to one rank each, so that each has about as much, the
    /// others in parts. `saved_name` is what a parameter is called in files, by which it may be named too;
    /// `modules` are the paths of the model's modules.
    ///
    /// Errors: a path that names nothing, an unknown axis, another number of dims.
    pub fn new(
        config: &ShardingConfig,
        params: &[ParamSpec],
        saved_name: impl Fn(&str) -> String,
        modules: &[String],
        uncut: impl Fn(&ParamSpec) -> bool,
        mesh: &Mesh,
    ) -> Result<Self> {
        let mut rules = Vec::new();
        for (pattern, dims) in &config.paths {
            rules.push(Rule::new(pattern, dims.as_deref().unwrap_or_default())?);
        }
        let mut is_idle = vec![true; rules.len()];
        let mut placements = HashMap::new();
        let (mut unnamed, mut named_axes) = (Vec::new(), BTreeSet::new());
        let every = config.every.as_ref().map(|names| axes("every", names));
        let every = every.transpose()?.unwrap_or_default();
        each_once("every", every.clone())?;
        for spec in params {
            let saved = saved_name(&spec.path);
            let mut chosen: Option<&Rule> = None;
            for (rule, idle) in rules.iter().zip(&mut is_idle) {
                if rule.glob.matches(&spec.path) || rule.glob.matches(&saved) {
                    *idle = false;
                    let is_better = |other: &Rule| rule.literal_len > other.literal_len;
                    if chosen.is_none_or(is_better) {
                        chosen = Some(rule);
                    }
                }
            }
            let dims = spec.shape.len();
            let placement = match chosen {
                Some(rule) => rule.placement(&saved, dims)?,
                None => {
                    let pattern = pattern_of(&saved);
                    if !unnamed.contains(&pattern) {
                        unnamed.push(pattern);
                    }
                    let first = std::iter::once(every.clone());
                    first
                        .chain(std::iter::repeat(Vec::new()))
                        .take(dims)
                        .collect()
                }
            };
            named_axes.extend(placement.concat());
            let spread = |axes: &Vec<Axis>| axes.iter().any(|&axis| mesh.size(axis) > 1);
            if placement.iter().any(spread) {
                placements.insert(spec.path.clone(), (spec.shape.clone(), placement));
            }
        }
        for (rule, _) in rules.iter().zip(is_idle).filter(|(_, idle)| *idle) {
            rule.check_activation(params, &saved_name, modules)?;
        }
        if !every.is_empty() || config.paths.is_empty() {
            unnamed.clear();
        }
        let whole = params.iter().filter(|spec| uncut(spec));
        let whole = whole.filter_map(|spec| Some((spec, placements.get(&spec.path)?.1.concat())));
        let owners = owners(whole.collect(), mesh);
        Ok(Self {
            mesh: mesh.clone(),
            placements,
            owners,
            gather: config.gather,
            prefetch: config.prefetch,
            reduce: config.reduce,
            unnamed,
            named_axes,
        })
    }

    /// How the ranks are arranged.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// When parameters are made whole.
    pub fn gather(&self) -> Gather {
        self.gather
    }

    /// Whether the next block is made whole while one runs.
    pub fn prefetch(&self) -> bool {
        self.prefetch && self.gather == Gather::Block
    }

    /// When gradients are summed.
    pub fn reduce(&self) -> Sums {
        self.reduce
    }

    /// Parameters that each rank holds whole only because no path names them: `*` for any number.
    pub fn unnamed(&self) -> &[String] {
        &self.unnamed
    }

    /// The axes along which some parameter is shared out, where there is more than one rank along them.
    pub fn named_axes(&self) -> &BTreeSet<Axis> {
        &self.named_axes
    }

    /// The axes along which a parameter is shared out.
    pub fn axes(&self, path: &str) -> Vec<Axis> {
        let placement = self.placements.get(path);
        let axes = placement.into_iter().flat_map(|(_, dims)| dims.concat());
        axes.collect()
    }

    /// The part that `rank` holds; `None` of one that each rank holds whole.
    pub fn part(&self, path: &str, rank: usize) -> Option<Shard> {
        let (shape, placement) = self.placements.get(path)?;
        if let Some(owner) = self.owners.get(path) {
            let is_own = self.mesh.place(rank, &placement.concat()) == *owner;
            let ranges = shape.iter().map(|&len| if is_own { 0..len } else { 0..0 });
            let shard = Shard::new(shape.as_slice(), ranges.collect());
            return Some(shard.expect("all or nothing of a dim"));
        }
        let dims = shape.iter().zip(placement);
        let ranges = dims.map(|(&len, axes)| self.range(len, axes, rank));
        let shard = Shard::new(shape.as_slice(), ranges.collect());
        Some(shard.expect("a dim is cut within its bounds"))
    }

    /// Elements of the largest part of a parameter; 0 of one that each rank holds whole.
    pub(crate) fn largest_part(&self, path: &str) -> usize {
        let Some((shape, placement)) = self.placements.get(path) else {
            return 0;
        };
        let is_cut = !self.owners.contains_key(path);
        let ranks = |axes: &Vec<Axis>| axes.iter().map(|&axis| self.mesh.size(axis)).product();
        let dims = shape.iter().zip(placement);
        dims.map(|(len, axes)| len.div_ceil(if is_cut { ranks(axes) } else { 1 }))
            .product()
    }

    /// The rank that holds the most elements, the first of several.
    pub fn fullest_rank(&self) -> usize {
        // Parameters of one shape along the same axes have parts alike: a rank is asked for each kind, as there may be many.
        let mut kinds: HashMap<&(Vec<usize>, Placement), usize> = HashMap::new();
        let mut owned: HashMap<Vec<Axis>, HashMap<usize, usize>> = HashMap::new();
        for (path, kind) in &self.placements {
            if let Some(&owner) = self.owners.get(path) {
                let of_axes = owned.entry(kind.1.concat()).or_default();
                *of_axes.entry(owner).or_default() += kind.0.iter().product::<usize>();
            } else {
                *kinds.entry(kind).or_default() += 1;
            }
        }
        let held = |rank: usize| -> usize {
            let cut = kinds.iter().map(|((shape, placement), count)| {
                let dims = shape.iter().zip(placement);
                count
                    * dims
                        .map(|(&len, axes)| self.range(len, axes, rank).len())
                        .product::<usize>()
            });
            let whole = owned
                .iter()
                .filter_map(|(axes, owners)| owners.get(&self.mesh.place(rank, axes)));
            cut.sum::<usize>() + whole.sum::<usize>()
        };
        let ranks = 0..self.mesh.num_ranks();
        let fullest = ranks.max_by_key(|&rank| (held(rank), std::cmp::Reverse(rank)));
        fullest.unwrap_or(0)
    }

    /// What `rank` has of a dim of `len` that is cut along `axes`.
    fn range(&self, len: usize, axes: &[Axis], rank: usize) -> Range<usize> {
        let parts: usize = axes.iter().map(|&axis| self.mesh.size(axis)).product();
        let place = self.mesh.place(rank, axes);
        place * len / parts..(place + 1) * len / parts
    }

    /// The part of `spec` that `rank` holds.
    pub fn shard(&self, spec: &ParamSpec, rank: usize) -> Shard {
        let whole = || Shard::whole(spec.shape.as_slice());
        self.part(&spec.path, rank).unwrap_or_else(whole)
    }
}

/// Who is to have which of `whole`, each given with its axes: the largest first, to the one that has the least so far.
fn owners(mut whole: Vec<(&ParamSpec, Vec<Axis>)>, mesh: &Mesh) -> HashMap<String, usize> {
    let num_elements = |spec: &ParamSpec| spec.shape.iter().product::<usize>();
    whole.sort_by_key(|(spec, _)| std::cmp::Reverse(num_elements(spec)));
    let mut loads: HashMap<Vec<Axis>, Vec<usize>> = HashMap::new();
    let own = whole.into_iter().map(|(spec, axes)| {
        let ranks = axes.iter().map(|&axis| mesh.size(axis)).product();
        let loads = loads.entry(axes).or_insert_with(|| vec![0; ranks]);
        let least = (0..ranks).min_by_key(|&rank| loads[rank]).unwrap_or(0);
        loads[least] += num_elements(spec);
        (spec.path.clone(), least)
    });
    own.collect()
}

/// One line of the configuration.
struct Rule {
    pattern: String,
    glob: PathGlob,
    dims: Placement,
    /// Characters that are no wildcards: of several rules for a path, the one with the most counts.
    literal_len: usize,
}

/// A parameter is cut along an axis once.
fn each_once(path: &str, mut axes: Vec<Axis>) -> Result<()> {
    axes.sort();
    match axes.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(Error::Twice {
            path: path.to_owned(),
            axis: pair[0].name(),
        }),
    }
}

impl Rule {
    fn new(pattern: &str, dims: &[Option<AxisNames>]) -> Result<Self> {
        // `[0]` picks an element of what a module gives.
        let path = pattern.split('[').next().unwrap_or_default();
        let axes = |names: &Option<AxisNames>| match names {
            Some(names) => axes(pattern, names),
            None => Ok(Vec::new()),
        };
        let dims = dims.iter().map(axes).collect::<Result<Placement>>()?;
        each_once(pattern, dims.concat())?;
        Ok(Self {
            pattern: pattern.to_owned(),
            glob: PathGlob::new(path)?,
            dims,
            literal_len: path.chars().filter(|&c| c != '*').count(),
        })
    }

    fn placement(&self, parameter: &str, dims: usize) -> Result<Placement> {
        if self.dims.is_empty() {
            return Ok(vec![Vec::new(); dims]); // null: not shared out
        }
        if self.dims.len() != dims {
            return Err(Error::WrongRank {
                path: self.pattern.clone(),
                named: self.dims.len(),
                parameter: parameter.to_owned(),
                dims,
            });
        }
        Ok(self.dims.clone())
    }

    /// What names no parameter may name what a module gives, which is shared out by rows in any case.
    fn check_activation(
        &self,
        params: &[ParamSpec],
        saved_name: impl Fn(&str) -> String,
        modules: &[String],
    ) -> Result<()> {
        let path = self.pattern.clone();
        if !modules.iter().any(|module| self.glob.matches(module)) {
            let known = params.iter().map(|spec| saved_name(&spec.path));
            let known: Vec<String> = known.chain(modules.iter().cloned()).collect();
            let near = nearest(&path, &known);
            return Err(Error::NoSuchPath { path, near });
        }
        let rows = self.dims.first().into_iter().flatten();
        let is_by_rows = rows.clone().all(|axis| Axis::OF_BATCH.contains(axis));
        let others = self.dims.iter().skip(1);
        if is_by_rows && others.flatten().next().is_none() {
            return Ok(());
        }
        Err(Error::Activation { path })
    }
}

fn axes(path: &str, names: &AxisNames) -> Result<Vec<Axis>> {
    names.axes().map_err(|name| Error::NoSuchAxis {
        path: path.to_owned(),
        name,
    })
}

/// With `*` in place of each number.
fn pattern_of(path: &str) -> String {
    let parts = path.split('.').map(|part| match part.parse::<usize>() {
        Ok(_) => "*",
        Err(_) => part,
    });
    parts.collect::<Vec<_>>().join(".")
}

/// The known path that is most like `path`, with the wildcards that it has.
fn nearest(path: &str, known: &[String]) -> Option<String> {
    let like = |known: &String| {
        if path.contains('*') {
            pattern_of(known)
        } else {
            known.clone()
        }
    };
    let rated = known
        .iter()
        .map(like)
        .map(|known| (strsim::jaro_winkler(path, &known), known));
    let best = rated.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 > 0.8).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use tt_dist::MeshAxes;
    use tt_nn::{Init, ParamKind};

    use super::*;

    fn params() -> Vec<ParamSpec> {
        let spec = |path: &str, shape: &[usize]| ParamSpec {
            path: path.to_owned(),
            shape: shape.to_vec(),
            init: Init::Zeros,
            kind: ParamKind::Linear,
        };
        vec![
            spec("model.embed.weight", &[10, 4]),
            spec("model.layers.0.q.weight", &[4, 4]),
            spec("model.layers.1.q.weight", &[4, 4]),
            spec("model.norm.weight", &[4]),
        ]
    }

    fn mesh(data: i64, fsdp: i64) -> Mesh {
        let axes = MeshAxes {
            data,
            fsdp: Some(fsdp),
            ..MeshAxes::default()
        };
        Mesh::new(&axes, &MeshAxes::default(), (data * fsdp) as usize).unwrap()
    }

    fn layout(config: &str, mesh: &Mesh) -> Result<Layout> {
        let config = serde_json::from_str(config).unwrap();
        let modules = ["model.layers.0".to_owned(), "lm_head".to_owned()];
        Layout::new(&config, &params(), str::to_owned, &modules, |_| false, mesh)
    }

    #[test]
    fn a_path_shares_out_what_it_matches() {
        let config = r#"{"type": "spmd", "model.layers.*.q.weight": [null, "fsdp"], "model.layers.1.q.weight": null,
            "model.layers.*": [["data", "fsdp"], null, null], "lm_head": [["data", "fsdp"], null, null]}"#;
        let layout = layout(config, &mesh(1, 4)).unwrap();
        let shape = |path: &str| layout.part(path, 3).map(|shard| shard.local_shape());
        assert_eq!(shape("model.layers.0.q.weight"), Some(vec![4, 1]));
        assert_eq!(shape("model.layers.1.q.weight"), None, "null says so");
        assert_eq!(shape("model.norm.weight"), None);
        assert_eq!(
            layout.unnamed(),
            ["model.embed.weight", "model.norm.weight"]
        );
    }

    #[test]
    fn every_parameter_is_cut_into_parts_that_differ_by_one_at_most() {
        let layout = layout(r#"{"every": ["data", "fsdp"]}"#, &mesh(2, 3)).unwrap();
        assert!(layout.unnamed().is_empty());
        for spec in params() {
            let parts: Vec<_> = (0..6).map(|rank| layout.shard(&spec, rank)).collect();
            let rows: Vec<usize> = parts.iter().map(|part| part.local_shape()[0]).collect();
            assert_eq!(rows.iter().sum::<usize>(), spec.shape[0]);
            assert!(rows.iter().max().unwrap() - rows.iter().min().unwrap() <= 1);
            let mut elements: Vec<usize> =
                parts.iter().flat_map(|it| it.runs().flatten()).collect();
            elements.dedup();
            let all: usize = spec.shape.iter().product();
            assert_eq!(elements, (0..all).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_axis_of_one_rank_shares_nothing_out() {
        let layout = layout(r#"{"every": "fsdp"}"#, &mesh(4, 1)).unwrap();
        assert!(params().iter().all(|spec| layout.shard(spec, 2).is_whole()));
        assert!(layout.axes("model.norm.weight").is_empty());
    }

    #[test]
    fn what_must_not_be_cut_is_shared_out_in_turns() {
        let config = serde_json::from_str(r#"{"every": "fsdp"}"#).unwrap();
        let uncut = |spec: &ParamSpec| spec.path.contains("q.weight");
        let params = params();
        let layout = Layout::new(&config, &params, str::to_owned, &[], uncut, &mesh(1, 2));
        let layout = layout.unwrap();
        let shape = |path: usize, rank| layout.shard(&params[path], rank).local_shape();
        assert_eq!((shape(1, 0), shape(1, 1)), (vec![4, 4], vec![0, 0]));
        assert_eq!((shape(2, 0), shape(2, 1)), (vec![0, 0], vec![4, 4]));
        assert_eq!((shape(0, 0), shape(0, 1)), (vec![5, 4], vec![5, 4]));
    }

    #[test]
    fn the_fullest_rank_holds_the_largest_parts() {
        // 10 rows and 4 on 3 ranks: the last has what is left over of both.
        let layout = layout(r#"{"every": "fsdp"}"#, &mesh(2, 3)).unwrap();
        assert_eq!(layout.fullest_rank(), 2);
        for spec in params() {
            let part = layout.shard(&spec, 2).local_shape();
            let largest = layout.largest_part(&spec.path);
            assert_eq!(part.iter().product::<usize>(), largest, "{}", spec.path);
        }
        let config = serde_json::from_str(r#"{"every": "fsdp"}"#).unwrap();
        let uncut = |spec: &ParamSpec| spec.path.contains("embed");
        let params = params();
        let layout = Layout::new(&config, &params, str::to_owned, &[], uncut, &mesh(1, 2));
        let layout = layout.unwrap();
        assert_eq!(layout.fullest_rank(), 0, "which has the embedding");
        assert_eq!(layout.largest_part("model.embed.weight"), 40);
        assert_eq!(layout.largest_part("model.layers.0.q.weight"), 8);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mesh = mesh(1, 2);
        for (config, expected) in [
            (
                r#"{"model.layers.*.k.weight": ["fsdp", null]}"#,
                "`model.layers.*.k.weight` is no parameter or module of this model; did you mean `model.layers.*.q.weight`?",
            ),
            (
                r#"{"model.norm.weight": ["fsdp", null]}"#,
                "`model.norm.weight` names 2 dims, and `model.norm.weight` has 1",
            ),
            (
                r#"{"model.norm.weight": ["fsd"]}"#,
                "`model.norm.weight`: no axis is called `fsd`; there are data, fsdp, tensor, expert, context",
            ),
            (
                r#"{"every": "rows"}"#,
                "`every`: no axis is called `rows`; there are data, fsdp, tensor, expert, context",
            ),
            (
                r#"{"model.layers.*.q.weight": ["fsdp", "fsdp"]}"#,
                "`model.layers.*.q.weight` has the axis `fsdp` twice",
            ),
            (
                r#"{"every": ["fsdp", "data", "fsdp"]}"#,
                "`every` has the axis `fsdp` twice",
            ),
            (
                r#"{"lm_head": [null, "fsdp"]}"#,
                "`lm_head`: activations are shared out by rows, [[data, fsdp], null, ...], and in no other way yet",
            ),
        ] {
            assert_eq!(layout(config, &mesh).unwrap_err().to_string(), expected);
        }
    }
}
