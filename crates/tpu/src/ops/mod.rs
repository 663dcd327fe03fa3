//! The host's side of the kernels: one module a family, which checks operands and fills in arguments.

pub(crate) mod attention;
pub(crate) mod binary;
pub(crate) mod copy;
pub(crate) mod cross_entropy;
pub(crate) mod fill;
pub(crate) mod gelu;
pub(crate) mod index;
pub(crate) mod layer_norm;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod operand;
pub(crate) mod optimizer;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod swiglu;
pub(crate) mod unary;
pub(crate) mod vendor_attention;

/// Name and bytes of the arguments of every kernel.
pub(crate) fn kernels() -> impl Iterator<Item = (&'static str, usize)> {
    [
        attention::KERNELS,
        binary::KERNELS,
        copy::KERNELS,
        cross_entropy::KERNELS,
        fill::KERNELS,
        gelu::KERNELS,
        index::KERNELS,
        layer_norm::KERNELS,
        matmul::KERNELS,
        norm::KERNELS,
        optimizer::KERNELS,
        random::KERNELS,
        reduce::KERNELS,
        rope::KERNELS,
        swiglu::KERNELS,
        unary::KERNELS,
        crate::batch::KERNELS,
        crate::fault_injection::KERNELS,
    ]
    .into_iter()
    .flatten()
    .copied()
}
