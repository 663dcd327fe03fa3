//! The host's side of the kernels: one module a family, which checks operands and fills in arguments.

pub(crate) mod fill;

/// Name and bytes of the arguments of every kernel.
pub(crate) fn kernels() -> impl Iterator<Item = (&'static str, usize)> {
    [fill::KERNELS, crate::plant::KERNELS]
        .into_iter()
        .flatten()
        .copied()
}
