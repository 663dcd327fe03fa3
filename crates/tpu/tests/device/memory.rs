//! A device without room. The test takes all memory.

use crate::alone;
use crate::common::{device, upload};
use candle_core::backend::BackendStorage;
use candle_core::scalar::Scalar;
use candle_core::{CpuStorage, DType, Layout};
use tt_tpu::Error;

#[test]
fn memory_that_is_not_there_is_an_error_and_all_that_was_given_is() {
    let _alone = alone();
    let Some(device) = device() else { return };
    const CHUNK: usize = 256 << 20;
    let mut chunks = Vec::new();
    let error = loop {
        match device.alloc(DType::U8, CHUNK) {
            Ok(chunk) => chunks.push(chunk),
            Err(error) => break error,
        }
        assert!(chunks.len() <= 16, "the device has 4 GiB");
    };
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert!(chunks.len() >= 15, "{} chunks", chunks.len());

    // The end of the last one, which is the end of the memory.
    let mut last = chunks.pop().unwrap();
    drop(chunks);
    let end = Layout::contiguous_with_offset(4096, CHUNK - 4096);
    last.const_set(Scalar::U8(7), &end).unwrap();
    let mut seen = upload(device, &CpuStorage::U8(vec![0; 4096]));
    last.copy_strided_src(&mut seen, 0, &end).unwrap();
    let seen = seen.to_cpu_storage().unwrap();
    assert!(seen.as_slice::<u8>().unwrap().iter().all(|x| *x == 7));
}
