//! Rows and elements by index: embedding, index_select, index_add, gather, scatter.
//!
//! An index that is out of range is found by the kernel; the next read of the host ends with [`crate::Error::Fault`].

use candle_core::{DType, Layout};
use tt_cpu::View;

use crate::error::{Error, Result};
use crate::launch::{code, kernels};
use crate::ops::copy::{self, contiguous};
use crate::ops::operand::ensure;
use crate::ops::unary;
use crate::storage::{TpuStorage, elements, start};
use crate::traffic::{I32, Operand, Traffic};

/// `rows_by_index_t` of `kernels/index.c`, behind the header.
#[repr(C)]
#[derive(bytemuck::NoUninit, Clone, Copy, Debug, Default)]
pub(crate) struct RowsByIndex {
    x: u64,
    index: u64,
    y: u64,
    outer: i64,
    /// Rows that an index chooses from.
    size: i64,
    /// Indices.
    count: i64,
    width: i64,
    x_dtype: u32,
    y_dtype: u32,
}

impl RowsByIndex {
    fn new(
        x: View<TpuStorage>,
        index: &Indices,
        y: &TpuStorage,
        [outer, size, width]: [usize; 3],
    ) -> Result<Self> {
        Ok(Self {
            x: start(x),
            index: index.address,
            y: y.address_at(0),
            outer: outer as i64,
            size: size as i64,
            count: index.count as i64,
            width: width as i64,
            x_dtype: code(x.0.kind())?,
            y_dtype: code(y.kind())?,
        })
    }
}

kernels! {
    SelectRows = "select_rows" { rows: RowsByIndex }
    AddRows = "add_rows" { rows: RowsByIndex }

    ByElement = "by_element" {
        x: u64,
        index: u64,
        y: u64,
        outer: i64,
        size: i64,
        count: i64,
        inner: i64,
        op: u32,
        dtype: u32,
        x_bytes: u64,
        y_bytes: u64,
    }
}

impl Traffic for SelectRows {
    fn operands(&self) -> Vec<Operand> {
        let it = &self.rows;
        let rows = [it.outer, it.count, it.width];
        vec![
            Operand::read("x", rows, it.x_dtype),
            Operand::read("index", [it.count], I32),
            Operand::write("y", rows, it.y_dtype),
        ]
    }
}

impl Traffic for AddRows {
    fn operands(&self) -> Vec<Operand> {
        let it = &self.rows;
        let rows = [it.outer, it.count, it.width];
        vec![
            Operand::read("x", rows, it.x_dtype),
            Operand::read("index", [it.count], I32),
            Operand::update("y", rows, it.y_dtype),
        ]
    }
}

impl Traffic for ByElement {
    fn operands(&self) -> Vec<Operand> {
        let elements = [self.outer, self.count, self.inner];
        let adds = self.op == Element::ScatterAdd as u32;
        vec![
            Operand::read("x", elements, self.dtype),
            Operand::read("index", elements, I32),
            Operand::result("y", elements, self.dtype, adds),
        ]
    }
}

/// In the order of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Element {
    Gather,
    Scatter,
    ScatterAdd,
}

/// `[outer, size, inner]` around a dim.
fn around(layout: &Layout, dim: usize) -> [usize; 3] {
    let dims = layout.dims();
    [
        dims[..dim].iter().product(),
        dims[dim],
        dims[dim + 1..].iter().product(),
    ]
}

/// Indices in order, as 32 bits.
pub(crate) struct Indices {
    count: usize,
    pub(crate) address: u64,
    /// Holds them, if they had to be copied. Memory is reused in the order of the stream, so it may go as soon as the
    /// launch is queued.
    _copy: Option<TpuStorage>,
}

impl Indices {
    pub(crate) fn new(view: View<TpuStorage>) -> Result<Self> {
        let count = elements(view.1);
        let dtype = view.0.kind();
        let ordered = contiguous(view)?;
        let (address, copy) = match dtype {
            DType::U8 => {
                let wide = unary::map(unary::Function::Cast, [0.0; 2], ordered.view(), DType::U32)?;
                (wide.address_at(0), Some(wide))
            }
            DType::U32 | DType::I32 | DType::I64 => (start(ordered.view()), ordered.copy),
            other => return Err(Error::Operand(format!("{other:?} is no type of an index"))),
        };
        Ok(Self {
            count,
            address,
            _copy: copy,
        })
    }
}

/// Rows of dim `dim` by index, in a storage of its own.
pub(crate) fn select(
    x: View<TpuStorage>,
    index: View<TpuStorage>,
    dim: usize,
) -> Result<TpuStorage> {
    let [outer, size, width] = around(x.1, dim);
    let index = Indices::new(index)?;
    let y = x.0.on().alloc(x.0.kind(), outer * index.count * width)?;
    if y.len() > 0 {
        let x = contiguous(x)?;
        select_rows(x.view(), &index, &y, [outer, size, width])?;
    }
    Ok(y)
}

/// `y[r] = table[ids[r]]`, `y` f32.
pub(crate) fn embedding(
    table: View<TpuStorage>,
    ids: View<TpuStorage>,
    y: &mut TpuStorage,
) -> Result<()> {
    let &[size, width] = table.1.dims() else {
        return Err(Error::Operand(format!(
            "embedding: a table of {:?}",
            table.1.dims()
        )));
    };
    let index = Indices::new(ids)?;
    let len = index.count * width;
    ensure!(
        len <= y.len(),
        "embedding: room for {} elements instead of {len}",
        y.len()
    );
    if len == 0 {
        return Ok(());
    }
    let table = contiguous(table)?;
    if table.view().0.kind() == y.kind() {
        return select_rows(table.view(), &index, y, [1, size, width]);
    }
    let rows = y.on().alloc(table.view().0.kind(), len)?;
    select_rows(table.view(), &index, &rows, [1, size, width])?;
    let layout = Layout::contiguous(len);
    unary::map_into(unary::Function::Cast, [0.0; 2], (&rows, &layout), y)
}

fn select_rows(
    x: View<TpuStorage>,
    index: &Indices,
    y: &TpuStorage,
    around: [usize; 3],
) -> Result<()> {
    let [_, size, width] = around;
    ensure!(size > 0, "index_select from no rows");
    ensure!(
        size.max(width) < i32::MAX as usize,
        "index_select from {size} rows of {width}"
    );
    y.on().launch(SelectRows {
        rows: RowsByIndex::new(x, index, y, around)?,
        ..SelectRows::default()
    })
}

/// `x` with the rows of `source` added at dim `dim`, in a storage of its own.
pub(crate) fn add(
    x: View<TpuStorage>,
    index: View<TpuStorage>,
    source: View<TpuStorage>,
    dim: usize,
) -> Result<TpuStorage> {
    let [outer, size, width] = around(x.1, dim);
    let mut y = x.0.on().alloc(x.0.kind(), elements(x.1))?;
    copy::into_order(x, &mut y, 0)?;
    add_rows(source, index, &mut y, [outer, size, width])?;
    Ok(y)
}

/// `y[o, index[i], :] += x[o, i, :]` for `y` `[outer, size, width]`.
pub(crate) fn add_rows(
    x: View<TpuStorage>,
    index: View<TpuStorage>,
    y: &mut TpuStorage,
    [outer, size, width]: [usize; 3],
) -> Result<()> {
    if !x.0.kind().is_float() || !y.kind().is_float() {
        return Err(Error::DType(x.0.kind()));
    }
    let index = Indices::new(index)?;
    let (len, room) = (outer * index.count * width, outer * size * width);
    ensure!(
        elements(x.1) == len,
        "index_add: {:?} for {} indices",
        x.1.dims(),
        index.count
    );
    ensure!(
        room <= y.len(),
        "index_add: room for {} elements instead of {room}",
        y.len()
    );
    if len == 0 {
        return Ok(());
    }
    let x = contiguous(x)?;
    y.on().launch(AddRows {
        rows: RowsByIndex::new(x.view(), &index, y, [outer, size, width])?,
        ..AddRows::default()
    })
}

/// Elements of `x` by index along `dim`, in a storage of its own, of the shape of `index`.
pub(crate) fn gather(
    x: View<TpuStorage>,
    index: View<TpuStorage>,
    dim: usize,
) -> Result<TpuStorage> {
    let y = x.0.on().alloc(x.0.kind(), elements(index.1))?;
    let size = x.1.dims()[dim];
    for (d, (have, at_most)) in index.1.dims().iter().zip(x.1.dims()).enumerate() {
        ensure!(
            d == dim || have == at_most,
            "gather: indices {:?} for {:?}",
            index.1.dims(),
            x.1.dims()
        );
    }
    let x = contiguous(x)?;
    by_element(
        Element::Gather,
        x.view(),
        index,
        &y,
        y.address_at(0),
        size,
        dim,
    )?;
    Ok(y)
}

/// Writes or adds the elements of `source` into `y` by index along `dim`.
pub(crate) fn scatter(
    op: Element,
    (y, layout): (&mut TpuStorage, &Layout),
    index: View<TpuStorage>,
    source: View<TpuStorage>,
    dim: usize,
) -> Result<()> {
    ensure!(
        layout.is_contiguous(),
        "scatter: into a view strided {:?}",
        layout.stride()
    );
    ensure!(
        source.0.kind() == y.kind(),
        "scatter: {:?} into {:?}",
        source.0.kind(),
        y.kind()
    );
    ensure!(
        op == Element::Scatter || matches!(y.kind(), DType::F32 | DType::BF16),
        "scatter_add: no sums in {:?}",
        y.kind()
    );
    for (d, (have, want)) in index.1.dims().iter().zip(layout.dims()).enumerate() {
        ensure!(
            d == dim || have == want,
            "scatter: indices {:?} for {:?}",
            index.1.dims(),
            layout.dims()
        );
    }
    ensure!(
        source.1.dims() == index.1.dims(),
        "scatter: {:?} at {:?}",
        source.1.dims(),
        index.1.dims()
    );
    let source = contiguous(source)?;
    let address = y.address_at(layout.start_offset());
    by_element(
        op,
        source.view(),
        index,
        y,
        address,
        layout.dims()[dim],
        dim,
    )
}

fn by_element(
    op: Element,
    x: View<TpuStorage>,
    index: View<TpuStorage>,
    y: &TpuStorage,
    address: u64,
    size: usize,
    dim: usize,
) -> Result<()> {
    let [outer, count, inner] = around(index.1, dim);
    let (side, other) = (outer * size * inner, outer * count * inner);
    ensure!(
        side.max(other) < i32::MAX as usize,
        "{op:?} among {side} elements"
    );
    let index = Indices::new(index)?;
    if other == 0 {
        return Ok(());
    }
    ensure!(size > 0, "{op:?} among no elements");
    let bytes = |len: usize, storage: &TpuStorage| TpuStorage::bytes_of(storage.kind(), len);
    let (x_len, y_len) = if op == Element::Gather {
        (side, other)
    } else {
        (other, side)
    };
    y.on().launch(ByElement {
        x: start(x),
        index: index.address,
        y: address,
        outer: outer as i64,
        size: size as i64,
        count: count as i64,
        inner: inner as i64,
        op: op as u32,
        dtype: code(y.kind())?,
        x_bytes: bytes(x_len, x.0)?,
        y_bytes: bytes(y_len, y)?,
        ..ByElement::default()
    })
}
