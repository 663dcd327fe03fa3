//! What the chips of several processes do together over their links, with kernels of the vendor's.
//!
//! Each process has a chip, which it opened with its place among them ([`Links`]). All launch the same collectives in the same
//! order. A chip that comes first waits for the others on its stream, and for ever for one that does not come: so who launches
//! one has met the others before, with what may fail behind it.
//!
//! Sums are taken in an order of the vendor's: the bits are the same on all chips and in every run, but for more than two chips
//! not those of sums in the order of the chips.

use std::fmt;
use std::net::Ipv4Addr;

use candle_core::DType;
use tt_cpu::View;

use crate::device::TpuDevice;
use crate::error::{Error, Result};
use crate::ops::copy::{self, Dim};
use crate::storage::{TpuStorage, elements, start};
use crate::traffic::{Operand, Traffic};
use crate::vendor::{as_ours, code, vendor_kernels};

/// The numbers of chips that the kernels are tested with. Of three they end the process.
const TESTED: [usize; 3] = [2, 4, 8];

/// Other chips of the machine that this one is linked with. Each process opens its own while the others do: who comes first
/// waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// The place of this chip, from 0.
    pub rank: usize,
    pub size: usize,
    /// Where emulators find each other: one of the machine's own (127.x.y.z), for these alone. They take a port each.
    pub address: Ipv4Addr,
}

impl Links {
    /// Error: so many chips cannot be linked, and why.
    pub fn check(size: usize) -> Result<()> {
        if TESTED.contains(&size) {
            return Ok(());
        }
        Err(Error::Operand(format!(
            "the vendor's collectives are for 2, 4 or 8 chips, and not for {size}"
        )))
    }
}

/// What is made of the tensors of all chips, by each. All give equally many elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// The sums of each element.
    AllReduce,
    /// Of the sums, the share of this chip: shares are equal and lie in the order of the chips.
    ReduceScatter,
    /// All, in the order of the chips.
    AllGather,
    /// What one gives.
    Broadcast { root: usize },
}

/// Whom a chip works together with, as the kernels have it.
#[repr(C)]
#[derive(Clone, Copy, Default, bytemuck::NoUninit, bytemuck::Zeroable)]
pub(crate) struct Group {
    size: i32,
    rank: i32,
    in_ring: i32,
    /// By rank.
    chips: [i32; 16],
}

/// For the flight record.
impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.rank, self.size)
    }
}

const SUM: i32 = 1;
const ONCE: i32 = 1;

vendor_kernels! {
    C2cAllReduce = "c2c_all_reduce" {
        x: u64, y: u64, n: u64, dtype: i32, op: i32, times: i32, group: Group,
    }
    C2cReduceScatter = "c2c_reduce_scatter" {
        x: u64, y: u64,
        /// Of `y`.
        n: u64,
        dtype: i32, op: i32, times: i32, group: Group,
    }
    C2cAllGather = "c2c_all_gather" {
        x: u64,
        /// Of `x`.
        n: u64,
        y: u64,
        /// The same.
        received: u64,
        dtype: i32, times: i32, group: Group,
    }
    C2cBroadcast = "c2c_broadcast" {
        /// Read by the root, written by the others.
        y: u64,
        n: u64, dtype: i32, root: i32, times: i32, group: Group,
    }
}

fn operands(x: u64, y: u64, dtype: i32) -> Vec<Operand> {
    let dtype = as_ours(dtype);
    vec![
        Operand::read("x", [x as i64], dtype),
        Operand::write("y", [y as i64], dtype),
    ]
}

impl Traffic for C2cAllReduce {
    fn operands(&self) -> Vec<Operand> {
        operands(self.n, self.n, self.dtype)
    }
}

impl Traffic for C2cReduceScatter {
    fn operands(&self) -> Vec<Operand> {
        operands(self.n * self.group.size as u64, self.n, self.dtype)
    }
}

impl Traffic for C2cAllGather {
    fn operands(&self) -> Vec<Operand> {
        operands(self.n, self.n * self.group.size as u64, self.dtype)
    }
}

impl Traffic for C2cBroadcast {
    fn operands(&self) -> Vec<Operand> {
        vec![Operand::update("y", [self.n as i64], as_ours(self.dtype))]
    }
}

impl TpuDevice {
    /// The chips that this one is linked with.
    pub fn links(self) -> Option<Links> {
        self.options().links
    }

    /// Elements that a chip gets of `len` that it gives. Errors: it is linked with none; `len` cannot be shared out.
    pub fn received(self, collective: Collective, len: usize) -> Result<usize> {
        let Some(Links { size, .. }) = self.links() else {
            let why = "the chip was opened without others that it is linked with";
            return Err(Error::Operand(why.to_owned()));
        };
        match collective {
            Collective::AllReduce | Collective::Broadcast { .. } => Ok(len),
            Collective::AllGather => Ok(len * size),
            Collective::ReduceScatter if len.is_multiple_of(size) => Ok(len / size),
            Collective::ReduceScatter => Err(Error::Operand(format!(
                "{len} elements are not shared out evenly among {size} chips"
            ))),
        }
    }

    /// Queues what the chips do together with `x` into `y`, which has room for what is [received](Self::received). The others
    /// must queue the same. Errors: as there; a type that is not summed or sent.
    pub fn collect(
        self,
        collective: Collective,
        x: View<TpuStorage>,
        y: &mut TpuStorage,
    ) -> Result<()> {
        let (storage, layout) = x;
        let given = elements(layout);
        let received = self.received(collective, given)?;
        let dtype = storage.kind();
        if !matches!(dtype, DType::F32 | DType::BF16 | DType::F16) {
            return Err(Error::DType(dtype));
        }
        assert!(layout.is_contiguous() && dtype == y.kind() && received == y.len());
        let (Some(links), true) = (self.links(), given > 0) else {
            return Ok(());
        };
        let mut group = Group {
            size: links.size as i32,
            rank: links.rank as i32,
            ..Group::default()
        };
        group.chips = std::array::from_fn(|chip| chip as i32);
        let (dtype, y_at) = (code(dtype)?, y.address_at(0));
        let (x_at, given, received) = (start(x), given as u64, received as u64);
        match collective {
            Collective::AllReduce => self.launch_vendor(C2cAllReduce {
                x: x_at,
                y: y_at,
                n: given,
                dtype,
                op: SUM,
                times: ONCE,
                group,
            }),
            Collective::ReduceScatter => self.launch_vendor(C2cReduceScatter {
                x: x_at,
                y: y_at,
                n: received,
                dtype,
                op: SUM,
                times: ONCE,
                group,
            }),
            Collective::AllGather => self.launch_vendor(C2cAllGather {
                x: x_at,
                n: given,
                y: y_at,
                received: given,
                dtype,
                times: ONCE,
                group,
            }),
            Collective::Broadcast { root } => {
                if root == links.rank {
                    let (size, src, dst) = (elements(layout), 1, 1);
                    let all = [Dim { size, src, dst }];
                    copy::copy(storage, layout.start_offset(), y, 0, &all)?;
                }
                self.launch_vendor(C2cBroadcast {
                    y: y_at,
                    n: given,
                    dtype,
                    root: root as i32,
                    times: ONCE,
                    group,
                })
            }
        }
    }
}
