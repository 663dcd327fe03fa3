//! What a kernel reads and writes, as its arguments say, for whoever looks on.

/// As in `launch::code`: the types that kernels have where none is asked for.
pub(crate) const F32: u32 = 5;
pub(crate) const U32: u32 = 8;
pub(crate) const I32: u32 = 9;

/// Elements of device memory that a kernel reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    pub name: &'static str,
    pub access: Access,
    pub shape: Vec<u64>,
    pub dtype: &'static str,
    element_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// Read, and written again.
    Update,
}

impl Operand {
    pub(crate) fn read<const N: usize>(name: &'static str, shape: [i64; N], dtype: u32) -> Self {
        Self::new(name, Access::Read, shape, dtype)
    }

    pub(crate) fn write<const N: usize>(name: &'static str, shape: [i64; N], dtype: u32) -> Self {
        Self::new(name, Access::Write, shape, dtype)
    }

    pub(crate) fn update<const N: usize>(name: &'static str, shape: [i64; N], dtype: u32) -> Self {
        Self::new(name, Access::Update, shape, dtype)
    }

    /// Written, or read and written.
    pub(crate) fn result<const N: usize>(
        name: &'static str,
        shape: [i64; N],
        dtype: u32,
        accumulates: bool,
    ) -> Self {
        let access = if accumulates {
            Access::Update
        } else {
            Access::Write
        };
        Self::new(name, access, shape, dtype)
    }

    /// `dtype` as in `launch::code`.
    fn new<const N: usize>(
        name: &'static str,
        access: Access,
        shape: [i64; N],
        dtype: u32,
    ) -> Self {
        let (dtype, element_bytes) = match dtype {
            0 => ("u8", 1),
            3 => ("f16", 2),
            F32 => ("f32", 4),
            U32 => ("u32", 4),
            I32 => ("i32", 4),
            11 => ("bf16", 2),
            _ => ("?", 0),
        };
        Self {
            name,
            access,
            shape: shape.map(|size| size.max(0) as u64).to_vec(),
            dtype,
            element_bytes,
        }
    }

    /// Elements of which only the size is known.
    pub(crate) fn of_bytes<const N: usize>(
        name: &'static str,
        access: Access,
        shape: [i64; N],
        element_bytes: u32,
    ) -> Self {
        let dtype = match element_bytes {
            1 => "8 bit",
            2 => "16 bit",
            _ => "32 bit",
        };
        Self {
            dtype,
            element_bytes: element_bytes.into(),
            ..Self::new(name, access, shape, 0)
        }
    }

    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.element_bytes
    }
}

/// Says what a launch reads and writes; nothing, if its author does not.
pub trait Traffic {
    fn operands(&self) -> Vec<Operand> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::code;
    use candle_core::DType;

    #[test]
    fn every_dtype_of_the_device_has_its_size() {
        for dtype in [
            DType::U8,
            DType::F16,
            DType::BF16,
            DType::F32,
            DType::U32,
            DType::I32,
        ] {
            let operand = Operand::read("x", [3], code(dtype).unwrap());
            assert_eq!(operand.bytes(), 3 * dtype.size_in_bytes() as u64);
            assert_eq!(operand.dtype, dtype.as_str());
        }
    }
}
