//! The devices that tests run on.

use tt_tensor::Device;

/// Every device of this machine; a test of an operation runs on each.
pub fn devices() -> Vec<Device> {
    vec![Device::Cpu]
}

/// Defines one test a device from a body that takes the device: `on_each_device!(fn name(device) { .. });`
#[macro_export]
macro_rules! on_each_device {
    ($(#[$attr:meta])* fn $name:ident($device:ident) $body:block) => {
        $(#[$attr])*
        #[test]
        fn $name() {
            for $device in $crate::devices() {
                $body
            }
        }
    };
}
