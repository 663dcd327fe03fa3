//! Numbers as they are stored: kernels widen them to f32 when they load, and round when they store.
//!
//! Rounding is to nearest, ties to even, in integer operations without branches, so that loops over elements become
//! vector code with the same bits on every instruction set.

use candle_core::{CpuStorage, WithDType};
use half::{bf16, f16};

/// f32, bf16 or f16.
pub(crate) trait Element: WithDType {
    fn widen(self) -> f32;
    fn round(x: f32) -> Self;

    /// The bits of this number in bf16.
    #[inline(always)]
    fn bf16_bits(self) -> u16 {
        bf16::round(self.widen()).to_bits()
    }

    /// All elements of a storage of this type.
    fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]>;

    /// The same elements, if this is f32.
    fn as_f32s(_: &[Self]) -> Option<&[f32]> {
        None
    }
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn round(x: f32) -> Self {
        x
    }

    fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        match storage {
            CpuStorage::F32(all) => Some(all),
            _ => None,
        }
    }

    fn as_f32s(slice: &[Self]) -> Option<&[f32]> {
        Some(slice)
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }

    #[inline(always)]
    fn round(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
    }

    #[inline(always)]
    fn bf16_bits(self) -> u16 {
        self.to_bits()
    }

    fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        match storage {
            CpuStorage::BF16(all) => Some(all),
            _ => None,
        }
    }
}

impl Element for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = self.to_bits() as u32;
        let sign = (bits & 0x8000) << 16;
        let magnitude = (bits & 0x7fff) << 13;
        // The exponent moves from bias 15 to bias 127 by a product, which is exact and makes subnormal numbers normal.
        let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits(); // 2^112
        let special = magnitude | 0x7f80_0000;
        let value = if magnitude >= 0x0f80_0000 {
            special
        } else {
            finite
        };
        f32::from_bits(value | sign)
    }

    #[inline(always)]
    fn round(x: f32) -> Self {
        let sign = x.to_bits() >> 16 & 0x8000;
        let bits = x.to_bits() & 0x7fff_ffff;
        // From 2^-14 on: the exponent moves from bias 127 to bias 15, and 13 bits are rounded away.
        let normal = bits
            .wrapping_sub(112 << 23)
            .wrapping_add(0xfff + (bits >> 13 & 1))
            >> 13;
        // Below: the sum with 0.5 has its last place at 2^-24, that of subnormal numbers.
        let subnormal = (f32::from_bits(bits) + 0.5)
            .to_bits()
            .wrapping_sub(0x3f00_0000);
        let value = if bits < 0x3880_0000 {
            subnormal
        } else {
            normal
        };
        let value = if bits >= 0x477f_f000 { 0x7c00 } else { value }; // 65520 and more
        let value = if bits > 0x7f80_0000 { 0x7e00 } else { value };
        f16::from_bits((value | sign) as u16)
    }

    fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        match storage {
            CpuStorage::F16(all) => Some(all),
            _ => None,
        }
    }
}

/// `x` as a product computed in `C` takes it.
#[inline(always)]
pub(crate) fn in_type<C: Element, T: Element>(x: T) -> f32 {
    if T::DTYPE == C::DTYPE {
        x.widen()
    } else {
        C::round(x.widen()).widen()
    }
}

/// Runs `$body` with `$T` as the type of `$storage`'s elements, or ends with an error that names the operand.
macro_rules! with_element {
    ($what:expr, $storage:expr, $T:ident => $body:expr) => {
        match candle_core::backend::BackendStorage::dtype($storage) {
            candle_core::DType::F32 => {
                type $T = f32;
                $body
            }
            candle_core::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            candle_core::DType::F16 => {
                type $T = half::f16;
                $body
            }
            other => candle_core::bail!("{} must be F32, BF16 or F16, not {other:?}", $what),
        }
    };
}
pub(crate) use with_element;

/// The same for two operands. bf16 and f16 do not mix.
macro_rules! with_elements {
    ($what:expr, $a:expr, $A:ident; $b:expr, $B:ident => $body:expr) => {{
        use candle_core::DType::{BF16, F16, F32};
        use candle_core::backend::BackendStorage;
        with_elements!(@match ($what, $a.dtype(), $b.dtype()), $A, $B, $body;
            F32, f32, F32, f32; F32, f32, BF16, half::bf16; F32, f32, F16, half::f16;
            BF16, half::bf16, F32, f32; F16, half::f16, F32, f32;
            BF16, half::bf16, BF16, half::bf16; F16, half::f16, F16, half::f16)
    }};
    (@match ($what:expr, $da:expr, $db:expr), $A:ident, $B:ident, $body:expr;
        $($va:ident, $ta:ty, $vb:ident, $tb:ty);+) => {
        match ($da, $db) {
            $(($va, $vb) => {
                type $A = $ta;
                type $B = $tb;
                $body
            })+
            (a, b) => candle_core::bail!(
                "{} must be F32, or F32 and 16-bit floats of one type, not {a:?} and {b:?}",
                $what
            ),
        }
    };
}
pub(crate) use with_elements;

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers around every rounding boundary of a 16-bit type: each value, the midpoint to the next, and their
    /// neighbours in f32.
    fn boundaries(widen: impl Fn(u16) -> f32) -> Vec<f32> {
        let mut all = vec![
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-45,
            1e-30,
            65_519.0,
            65_520.0,
        ];
        for bits in 0..u16::MAX {
            let (x, next) = (widen(bits), widen(bits + 1));
            let middle = ((x as f64 + next as f64) / 2.0) as f32;
            for x in [x, middle] {
                all.extend([x, x.next_up(), x.next_down()]);
            }
        }
        all
    }

    fn check<T: Element>(widen: fn(u16) -> f32, round: fn(f32) -> u16, ours: fn(u16) -> T) {
        for bits in 0..=u16::MAX {
            let (got, want) = (ours(bits).widen(), widen(bits));
            assert!(got.to_bits() == want.to_bits() || want.is_nan() && got.is_nan());
        }
        for x in boundaries(widen) {
            let (got, want) = (T::round(x).widen(), widen(round(x)));
            let same = got.to_bits() == want.to_bits() || want.is_nan() && got.is_nan();
            assert!(same, "{x:e}: {got:e} instead of {want:e}");
        }
    }

    #[test]
    fn bf16_widens_and_rounds_to_nearest_even() {
        let widen = |bits| bf16::from_bits(bits).to_f32();
        check(widen, |x| bf16::from_f32(x).to_bits(), bf16::from_bits);
    }

    #[test]
    fn f16_widens_and_rounds_to_nearest_even() {
        let widen = |bits| f16::from_bits(bits).to_f32();
        check(widen, |x| f16::from_f32(x).to_bits(), f16::from_bits);
    }
}
