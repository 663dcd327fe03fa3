//! How this thread computes with floating-point numbers, which a library changes by being loaded.
//!
//! One that was linked with `-ffast-math` has an initialiser which makes the thread take subnormal numbers for zero, and with
//! it all threads that it starts: from then on the host's own results are others.

/// Calls `load`, which loads libraries, and sets the thread's mode to what it was before.
pub(crate) fn kept<R>(load: impl FnOnce() -> R) -> R {
    let before = read();
    let result = load();
    write(before);
    result
}

#[cfg(target_arch = "x86_64")]
fn read() -> u64 {
    let mut mode = 0u32;
    // SAFETY: stores four bytes where it is told.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut mode, options(nostack)) };
    mode.into()
}

#[cfg(target_arch = "x86_64")]
fn write(mode: u64) {
    let mode = mode as u32;
    // SAFETY: a mode that was read.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &mode, options(nostack, readonly)) };
}

#[cfg(target_arch = "aarch64")]
fn read() -> u64 {
    let mode;
    // SAFETY: reads a register.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) mode, options(nomem, nostack)) };
    mode
}

#[cfg(target_arch = "aarch64")]
fn write(mode: u64) {
    // SAFETY: a mode that was read.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) mode, options(nomem, nostack)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn read() -> u64 {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn write(_: u64) {}
