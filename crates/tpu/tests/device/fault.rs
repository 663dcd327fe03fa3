//! What a kernel finds wrong is an error of the next read. It is one for whoever waits first, so no other test may.

use crate::alone;
use crate::common::{device, upload};
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Layout};

#[test]
fn an_index_out_of_range_is_an_error_of_the_next_read() {
    let _alone = alone();
    let Some(device) = device() else { return };
    let x = upload(device, &CpuStorage::F32(vec![1.0; 12]));
    let layout = Layout::contiguous((4, 3));
    let index = upload(device, &CpuStorage::U32(vec![0, 4, 1]));
    let rows = x
        .index_select(&index, &layout, &Layout::contiguous(3), 0)
        .unwrap();
    let error = rows.to_cpu_storage().unwrap_err().to_string();
    assert!(
        error.contains("select_rows") && error.contains("out of range"),
        "{error}"
    );
}
