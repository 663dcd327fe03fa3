//! Kernels of a user's own: that they run among ours, and what their author is told of the first mistakes.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use candle_core::CpuStorage;
use candle_core::backend::BackendStorage;
use tt_cpu::FusedOps;
use tt_kernels::Target;
use tt_tpu::{EMULATOR_FOLDER, Error, OwnModule, TpuDevice, kernels};

use crate::common::{Operand, TpuOperand, chip, device, launches, numbers, upload, values};
use crate::{alone, passes_in_batches};

static MODULE: LazyLock<OwnModule> =
    LazyLock::new(|| compile("own", include_str!("own_kernels.c")));

kernels! {
    in MODULE;
    Times = "times" { x: u64, y: u64, n: u64, by: f32, reserved: u32 }
    IsBelow = "is_below" { index: u64, size: u64 }
    Complains = "complains" {}
    /// Of which the C struct has no `more`.
    TooLong = "times" { x: u64, y: u64, n: u64, by: f32, reserved: u32, more: u64 }
    Misspelt = "time" { x: u64 }
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("own-module-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn compile(name: &str, source: &str) -> OwnModule {
    let folder = folder(name);
    let (file, module) = (folder.join("kernels.c"), folder.join("kernels.so"));
    std::fs::write(&file, source).unwrap();
    let target = Target::Emulator(chip());
    let compiler = target.compiler().unwrap();
    let compiled = target.compile_own(&compiler, &[file], &[], &module);
    compiled.unwrap();
    OwnModule::file(module)
}

fn times(device: TpuDevice, x: &TpuOperand, by: f32, y: &TpuOperand) {
    let (n, reserved) = (x.layout.shape().elem_count() as u64, 0);
    let (x, y) = (x.storage.address_at(0), y.storage.address_at(0));
    let args = Times {
        x,
        y,
        n,
        by,
        reserved,
        ..Times::default()
    };
    device.launch(args).unwrap();
}

/// So that the module is loaded.
fn times_nothing(device: TpuDevice) {
    let x = TpuOperand::new(device, &Operand::f32(vec![0.0], 1));
    times(device, &x, 1.0, &x);
}

/// More than a tile of all lanes, and a rest.
#[test]
fn they_run_in_the_order_of_the_calls_among_our_own() {
    let _alone = alone();
    let Some(device) = device() else { return };
    let host = Operand::f32(numbers(300_007, 1), 300_007);
    let before = launches(device, "times");
    let [x, mut y] = [(); 2].map(|()| TpuOperand::new(device, &host));
    times(device, &x, 3.0, &y); // 3x
    y.storage.axpy(1.0, x.view()).unwrap(); // 4x, by a kernel of ours, which a batch collects
    times(device, &y, 0.5, &y); // 2x
    let expected: Vec<f32> = numbers(300_007, 1).iter().map(|x| 2.0 * x).collect();
    assert_eq!(values(&y.storage), expected);
    assert_eq!(launches(device, "times"), before + 2);

    let emulators = std::env::var_os(EMULATOR_FOLDER).expect("set at opening");
    assert!(
        !Path::new(&emulators).exists(),
        "copies of the module are left"
    );
}

#[test]
fn so_they_do_where_ours_are_batched() {
    let _alone = alone();
    if device().is_none() {
        return;
    }
    passes_in_batches("own_module::they_run_in_the_order_of_the_calls_among_our_own");
}

#[track_caller]
fn is_refused<K: tt_tpu::Kernel>(device: TpuDevice, args: K, told: &[&str]) {
    let error = device.launch(args).unwrap_err();
    assert!(matches!(error, Error::OwnModule { .. }), "{error:?}");
    let text = error.to_string();
    for word in told {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn another_struct_and_an_unknown_name_are_told_with_file_kernel_and_sizes() {
    let _alone = alone();
    let Some(device) = device() else { return };
    let file = "own-module-own/kernels.so";
    let sizes = ["`times` takes 56 bytes of arguments, the host has 64", file];
    is_refused(device, TooLong::default(), &sizes);
    let names = [
        "do not define `time`; there is complains, is_below, times",
        file,
    ];
    is_refused(device, Misspelt::default(), &names);
    // Nothing was queued for either.
    device.synchronize().unwrap();
}

mod elsewhere {
    use super::*;

    static MISSING: LazyLock<OwnModule> = LazyLock::new(|| OwnModule::file("no/such/kernels.so"));
    kernels! { in MISSING; OfMissing = "times" {} }

    /// The header of a library for a RISC-V.
    static RISCV: LazyLock<OwnModule> = LazyLock::new(|| {
        let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\xf3\0\x01\0\0\0".to_vec();
        elf.extend([0; 28]);
        elf.extend([64, 0, 56, 0, 0, 0, 64, 0, 0, 0, 0, 0]);
        let path = folder("riscv").join("kernels.so");
        std::fs::write(&path, elf).unwrap();
        OwnModule::file(path)
    });
    kernels! { in RISCV; OfRiscv = "times" {} }

    static TAKEN: LazyLock<OwnModule> = LazyLock::new(|| {
        let source = include_str!("own_kernels.c").replace("KERNEL(times", "KERNEL(fill");
        compile("taken", &source)
    });
    kernels! { in TAKEN; Fill = "fill" { x: u64, y: u64, n: u64, by: f32, reserved: u32 } }

    static AGAIN: LazyLock<OwnModule> =
        LazyLock::new(|| compile("again", include_str!("own_kernels.c")));
    kernels! { in AGAIN; Again = "complains" {} }

    static ABSENT: LazyLock<OwnModule> = LazyLock::new(|| {
        let head = "#include \"kernel.h\"\ntypedef struct { launch_t launch; } absent_t;";
        let body = "void tpu_no_such_thing(void);\nKERNEL(absent, absent_t) { (void)a; tpu_no_such_thing(); }";
        compile("absent", &format!("{head}\n{body}\n"))
    });
    kernels! { in ABSENT; Absent = "absent" {} }

    #[test]
    fn a_module_that_cannot_be_loaded_is_named_with_the_reason() {
        let _alone = alone();
        let Some(device) = device() else { return };
        is_refused(
            device,
            OfMissing::default(),
            &["`no/such/kernels.so`", "No such file"],
        );
        let emulator = Target::Emulator(chip());
        let machine = format!("is for Riscv64, and {} is X86_64", emulator.name());
        let machines = ["own-module-riscv", machine.as_str()];
        is_refused(device, OfRiscv::default(), &machines);
        let name = [
            "own-module-taken",
            "`fill` is the name of a kernel of this program",
        ];
        is_refused(device, Fill::default(), &name);
        times_nothing(device);
        let other = [
            "own-module-again",
            "is the name of a kernel of",
            "own-module-own",
        ];
        is_refused(device, Again::default(), &other);
        let library = emulator.vendor_library();
        let function = format!("{library} does not define: tpu_no_such_thing");
        is_refused(device, Absent::default(), &["own-module-absent", &function]);
    }
}

#[test]
fn what_a_kernel_reports_is_an_error_of_the_next_read_that_names_it() {
    let _alone = alone();
    let Some(device) = device() else { return };
    let read = || upload(device, &CpuStorage::U32(vec![0])).to_cpu_storage();
    let index = upload(device, &CpuStorage::U32(vec![4]));
    let look = |size| {
        let index = index.address_at(0);
        device.launch(IsBelow {
            index,
            size,
            ..IsBelow::default()
        })
    };
    look(5).unwrap();
    read().unwrap();
    look(4).unwrap();
    let error = read().unwrap_err().to_string();
    assert!(
        error.contains("(is_below): an index is out of range"),
        "{error}"
    );
    device.launch(Complains::default()).unwrap();
    let error = read().unwrap_err().to_string();
    assert!(
        error.contains("(complains): it reports fault 70"),
        "{error}"
    );
    read().unwrap();
}
