//! From `(storage, layout)` operands to device addresses: every check of dtype, shape and bounds that kernels rely on.
//!
//! `what` names the operation and the operand in the error, as in `"attention: q"`.

/// Ends with [`Error::Operand`](crate::Error::Operand) unless `condition` holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::error::Error::Operand(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;
