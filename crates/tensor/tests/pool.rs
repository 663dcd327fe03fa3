//! What the buffer pool holds does not grow with the steps of a run. Alone in its process: the pool is shared.

use tt_cpu::pool;
use tt_tensor::{Device, Result, Tensor};

#[test]
fn buffers_that_candle_has_made_do_not_pile_up_in_the_pool() -> Result<()> {
    let x = Tensor::ones((64, 64), Device::Cpu)?;
    for _ in 0..10 {
        x.affine(2.0, 1.0)?.mul(&x)?.exp()?;
    }
    let stats = pool::stats();
    assert_eq!(stats.pooled_bytes, 0, "only `x` was taken, and it lives");
    assert_eq!(stats.live_bytes, 64 * 64 * size_of::<f32>());
    drop(x);
    assert_eq!(pool::stats().live_bytes, 0);
    Ok(())
}
