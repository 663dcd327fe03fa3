//! Compiles the kernels for the emulator, and for each chip that there is a compiler for.

fn main() -> Result<(), tt_kernels::Error> {
    tt_kernels::build("bias_gelu", &["kernels/bias_gelu.c"])
}
