//! Dropout keeps the elements that the CPU keeps.

use crate::common::{device, fallbacks, launches, stored, upload, widened};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use tt_cpu::{FusedOps, RngKey};
use tt_tpu::TpuStorage;

#[test]
fn dropout_keeps_the_elements_that_the_cpu_keeps() {
    let Some(device) = device() else { return };
    let before = launches(device, "dropout");
    let keys = [
        (0, 0),
        (1, 2),
        (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210),
        (u64::MAX, u64::MAX),
    ];
    for len in [1, 3, 4, 5, 255, 256, 257, 1023, 5000, 262_147, 600_001] {
        let layout = Layout::contiguous(len);
        for dtype in [DType::F32, DType::BF16] {
            for (key, stream) in keys {
                if len > 6000 && key != 1 {
                    continue;
                }
                let x = stored(
                    dtype,
                    (0..len).map(|i| 1.0 + (i % 100) as f32 / 64.0).collect(),
                );
                for p in [0.1, 0.5] {
                    let mut truth = stored(dtype, vec![0.0; len]);
                    let mut ours = upload(device, &truth);
                    let rng = RngKey { key, stream };
                    CpuStorage::dropout((&x, &layout), p, rng, &mut truth).unwrap();
                    TpuStorage::dropout((&upload(device, &x), &layout), p, rng, &mut ours).unwrap();
                    let (ours, truth) = (widened(&ours.to_cpu_storage().unwrap()), widened(&truth));
                    let differs = ours
                        .iter()
                        .zip(&truth)
                        .position(|(a, b)| (a - b).abs() > 2e-7 * b.abs());
                    assert_eq!(differs, None, "{dtype:?} of {len}, key {key:x}, p {p}");
                }
            }
        }
    }
    assert!(launches(device, "dropout") > before);
    assert_eq!(fallbacks(device, "dropout"), 0);
}
