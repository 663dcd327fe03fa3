//! How ranks are arranged: a box whose axes say what is spread along them.
//!
//! Two boxes within one another, as in easy-torch-tpu: `ici_mesh` within a host, `dcn_mesh` the same across hosts. The size
//! of an axis is the product of both. Ranks are numbered in row-major order, hosts first, with the axes in the order of
//! [`Axis::ALL`]: those along which most is said stand last, where ranks are neighbours.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is spread along an axis of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// Rows of a batch; parameters are held by each.
    Data,
    /// Rows of a batch and parts of parameters.
    Fsdp,
    /// Experts of a mixture.
    Expert,
    /// Positions of a sequence.
    Context,
    /// Parts of matrix products.
    Tensor,
}

impl Axis {
    /// All, in the order in which ranks are numbered.
    pub const ALL: [Self; 5] = [
        Self::Data,
        Self::Fsdp,
        Self::Expert,
        Self::Context,
        Self::Tensor,
    ];
    /// Those along which a batch is shared out.
    pub const OF_BATCH: [Self; 2] = [Self::Data, Self::Fsdp];

    /// As configurations call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Fsdp => "fsdp",
            Self::Expert => "expert",
            Self::Context => "context",
            Self::Tensor => "tensor",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Ranks along each axis, within a host or across hosts; -1, which one axis may have: as many as are left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MeshAxes {
    /// Along which rows of a batch are shared out, and each rank holds the same parameters.
    pub data: i64,
    /// Along which rows of a batch are shared out, and parameters too, as `model.sharding` says; null: what is left of the
    /// ranks, if no other axis is -1.
    pub fsdp: Option<i64>,
    /// Along which matrix products are shared out. Not there yet: 1.
    pub tensor: i64,
    /// Along which experts are shared out. Not there yet: 1.
    pub expert: i64,
    /// Along which sequences are shared out. Not there yet: 1.
    pub context: i64,
}

impl Default for MeshAxes {
    fn default() -> Self {
        Self {
            data: 1,
            fsdp: None,
            tensor: 1,
            expert: 1,
            context: 1,
        }
    }
}

impl MeshAxes {
    /// By [`Axis::ALL`].
    fn sizes(&self, rest: i64) -> [i64; 5] {
        [
            self.data,
            self.fsdp.unwrap_or(rest),
            self.expert,
            self.context,
            self.tensor,
        ]
    }
}

/// More than any machine has.
const MAX_RANKS: usize = 1 << 16;

/// What no mesh can be made of, at the key that says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {why}")]
pub struct MeshError {
    /// `ici_mesh.fsdp`
    pub key: String,
    /// What is wrong with it.
    pub why: String,
}

/// How many others a rank has in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// On the same host.
    pub within_host: usize,
    /// On other hosts.
    pub between_hosts: usize,
}

impl Peers {
    /// All of them.
    pub fn count(self) -> usize {
        self.within_host + self.between_hosts
    }
}

/// How the ranks of a run are arranged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Across hosts.
    outer: [usize; 5],
    /// Within a host.
    inner: [usize; 5],
}

impl Mesh {
    /// The ranks that the meshes ask for: the product of their axes, -1 standing for 1.
    pub fn ranks_asked(ici: &MeshAxes, dcn: &MeshAxes) -> usize {
        let sizes = ici.sizes(1).into_iter().chain(dcn.sizes(1));
        let sizes = sizes.map(|size| size.max(1) as usize);
        sizes.fold(1, usize::saturating_mul)
    }

    /// Arranges `ranks` ranks. Errors: the product of the axes is another number, more than one is -1, one is there for
    /// which there is no code yet.
    pub fn new(ici: &MeshAxes, dcn: &MeshAxes, ranks: usize) -> Result<Self, MeshError> {
        let said = dcn.sizes(1).into_iter().chain(ici.sizes(1));
        let rest = if said.into_iter().any(|size| size == -1) {
            1
        } else {
            -1
        };
        let parts = [("dcn_mesh", dcn.sizes(1)), ("ici_mesh", ici.sizes(rest))];
        let mut open = None;
        let mut product = 1;
        for (mesh, sizes) in parts {
            for axis in Axis::ALL {
                let (key, size) = (format!("{mesh}.{axis}"), sizes[axis.index()]);
                let refuse = |why: String| {
                    let key = key.clone();
                    Err(MeshError { key, why })
                };
                match size {
                    -1 => {
                        if let Some(first) = open.replace(key.clone()) {
                            return refuse(format!("-1, as `{first}` is: one may be"));
                        }
                    }
                    1.. if size > 1 && !Axis::OF_BATCH.contains(&axis) => {
                        return refuse(format!(
                            "{size}: nothing is spread along the axis `{axis}` yet, it must be 1"
                        ));
                    }
                    1.. => product = usize::saturating_mul(product, size as usize),
                    _ => return refuse(format!("{size} is no number of ranks")),
                }
            }
        }
        if ranks > MAX_RANKS {
            let key = "device.ranks".to_owned();
            let why = format!("{ranks} ranks; {MAX_RANKS} are the most that are reckoned with");
            return Err(MeshError { key, why });
        }
        let left = ranks / product;
        let is_full = ranks.is_multiple_of(product) && (left == 1 || open.is_some());
        if !is_full {
            let key = "device.ranks".to_owned();
            let why = format!(
                "the axes of ici_mesh and dcn_mesh make {}{product} ranks, and there {}",
                if open.is_some() { "a multiple of " } else { "" },
                match ranks {
                    1 => "is 1 (device.ranks)".to_owned(),
                    _ => format!("are {ranks} (device.ranks)"),
                }
            );
            return Err(MeshError { key, why });
        }
        let filled = |sizes: [i64; 5]| {
            sizes.map(|size| match size {
                -1 => left,
                size => size as usize,
            })
        };
        let [outer, inner] = parts.map(|(_, sizes)| filled(sizes));
        Ok(Self { outer, inner })
    }

    /// Ranks along `axis`.
    pub fn size(&self, axis: Axis) -> usize {
        self.outer[axis.index()] * self.inner[axis.index()]
    }

    /// All ranks.
    pub fn num_ranks(&self) -> usize {
        Axis::ALL.iter().map(|&axis| self.size(axis)).product()
    }

    /// Where `rank` stands along each of `axes`, taken together as one axis in the order given.
    pub fn place(&self, rank: usize, axes: &[Axis]) -> usize {
        let coordinates = self.coordinates(rank);
        let along = |place, &axis: &Axis| place * self.size(axis) + coordinates[axis.index()];
        axes.iter().fold(0, along)
    }

    /// What ranks have in common that are together in a group along `axes`, and no other: a color to split them by.
    pub fn color(&self, rank: usize, axes: &[Axis]) -> usize {
        let others = Axis::ALL.into_iter().filter(|axis| !axes.contains(axis));
        self.place(rank, &others.collect::<Vec<_>>())
    }

    /// The others of a group along `axes`, which are as many for each of its ranks.
    pub fn peers(&self, axes: &[Axis]) -> Peers {
        let of_host: usize = axes.iter().map(|axis| self.inner[axis.index()]).product();
        let all: usize = axes.iter().map(|&axis| self.size(axis)).product();
        Peers {
            within_host: of_host - 1,
            between_hosts: all - of_host,
        }
    }

    /// By [`Axis::ALL`].
    fn coordinates(&self, rank: usize) -> [usize; 5] {
        let mut rest = rank;
        let mut digits = |sizes: &[usize; 5]| {
            let mut found = [0; 5];
            for axis in (0..5).rev() {
                found[axis] = rest % sizes[axis];
                rest /= sizes[axis];
            }
            found
        };
        let inner = digits(&self.inner);
        let outer = digits(&self.outer);
        std::array::from_fn(|axis| outer[axis] * self.inner[axis] + inner[axis])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(data: i64, fsdp: i64) -> MeshAxes {
        MeshAxes {
            data,
            fsdp: Some(fsdp),
            ..MeshAxes::default()
        }
    }

    #[test]
    fn one_axis_takes_what_is_left() {
        let mesh = Mesh::new(&axes(2, -1), &axes(1, 1), 8).unwrap();
        assert_eq!((mesh.size(Axis::Data), mesh.size(Axis::Fsdp)), (2, 4));
        assert_eq!(mesh.num_ranks(), 8);
        assert_eq!(Mesh::ranks_asked(&axes(2, -1), &axes(3, 1)), 6);
        let across = Mesh::new(&axes(1, 4), &axes(-1, 1), 8).unwrap();
        assert_eq!((across.size(Axis::Data), across.size(Axis::Fsdp)), (2, 4));
    }

    #[test]
    fn fsdp_takes_what_is_left_unless_another_axis_does() {
        let data = |data| MeshAxes {
            data,
            ..MeshAxes::default()
        };
        let sizes = |ici: &MeshAxes, ranks| {
            let mesh = Mesh::new(ici, &MeshAxes::default(), ranks).unwrap();
            (mesh.size(Axis::Data), mesh.size(Axis::Fsdp))
        };
        assert_eq!(sizes(&data(1), 4), (1, 4));
        assert_eq!(sizes(&data(2), 4), (2, 2));
        assert_eq!(sizes(&data(-1), 4), (4, 1));
        assert_eq!(Mesh::ranks_asked(&axes(i64::MAX, 9), &data(2)), usize::MAX);
        assert!(Mesh::new(&data(1), &data(1), 1 << 17).is_err());
    }

    #[test]
    fn neighbours_are_together_along_the_last_axis() {
        let mesh = Mesh::new(&axes(2, 3), &axes(1, 1), 6).unwrap();
        let along = |axis| (0..6).map(move |rank| (axis, rank));
        let places = |axis| -> Vec<usize> {
            let all = along(axis).map(|(axis, rank)| mesh.place(rank, &[axis]));
            all.collect()
        };
        assert_eq!(places(Axis::Data), [0, 0, 0, 1, 1, 1]);
        assert_eq!(places(Axis::Fsdp), [0, 1, 2, 0, 1, 2]);
        let colors: Vec<_> = (0..6).map(|it| mesh.color(it, &[Axis::Fsdp])).collect();
        assert_eq!(colors, places(Axis::Data));
        let together: Vec<_> = (0..6).map(|it| mesh.place(it, &Axis::OF_BATCH)).collect();
        assert_eq!(together, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn hosts_are_filled_one_after_the_other() {
        // Two hosts of two: within a host along fsdp, across them along fsdp too.
        let mesh = Mesh::new(&axes(2, 1), &axes(1, 2), 4).unwrap();
        let place = |rank| {
            let along = |axis| mesh.place(rank, &[axis]);
            (along(Axis::Data), along(Axis::Fsdp))
        };
        let places: Vec<_> = (0..4).map(place).collect();
        assert_eq!(places, [(0, 0), (1, 0), (0, 1), (1, 1)]);
    }

    #[test]
    fn peers_are_those_of_the_host_and_the_others() {
        // Four hosts of six ranks.
        let mesh = Mesh::new(&axes(2, 3), &axes(4, 1), 24).unwrap();
        let peers = |axes: &[Axis]| {
            let peers = mesh.peers(axes);
            (peers.within_host, peers.between_hosts)
        };
        assert_eq!(peers(&[Axis::Fsdp]), (2, 0));
        assert_eq!(peers(&[Axis::Data]), (1, 6));
        assert_eq!(peers(&Axis::ALL), (5, 18));
        assert_eq!(peers(&[]), (0, 0));
    }

    #[test]
    fn what_is_no_mesh_is_refused_at_its_key() {
        let refused = |ici: &MeshAxes, dcn: &MeshAxes, ranks| {
            let error = Mesh::new(ici, dcn, ranks).unwrap_err();
            error.to_string()
        };
        let one = MeshAxes::default();
        for (ici, dcn, ranks, expected) in [
            (
                axes(1, 3),
                one.clone(),
                4,
                "`device.ranks`: the axes of ici_mesh and dcn_mesh make 3 ranks, and there are 4 (device.ranks)",
            ),
            (
                axes(2, -1),
                one.clone(),
                3,
                "`device.ranks`: the axes of ici_mesh and dcn_mesh make a multiple of 2 ranks, and there are 3 (device.ranks)",
            ),
            (
                axes(1, 4),
                one.clone(),
                1,
                "`device.ranks`: the axes of ici_mesh and dcn_mesh make 4 ranks, and there is 1 (device.ranks)",
            ),
            (
                axes(-1, -1),
                one.clone(),
                4,
                "`ici_mesh.fsdp`: -1, as `ici_mesh.data` is: one may be",
            ),
            (
                axes(0, 1),
                one.clone(),
                1,
                "`ici_mesh.data`: 0 is no number of ranks",
            ),
            (
                MeshAxes {
                    tensor: 2,
                    ..one.clone()
                },
                one.clone(),
                2,
                "`ici_mesh.tensor`: 2: nothing is spread along the axis `tensor` yet, it must be 1",
            ),
        ] {
            assert_eq!(refused(&ici, &dcn, ranks), expected);
        }
    }
}
