//! Protocol Buffers on the wire, as much as sinks need: varints, floating-point numbers and fields with a length.
//!
//! Written by hand: a dozen small messages are not worth a code generator and its build time.

/// A message that is being written. Fields that have their default are left out, as proto3 does.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn int(&mut self, field: u32, value: i64) {
        if value != 0 {
            self.varint(u64::from(field) << 3);
            // Negative numbers are ten bytes of two's complement.
            self.varint(value as u64);
        }
    }

    /// There even if it is 0.
    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// There even if it is 0.
    pub(super) fn float(&mut self, field: u32, value: f32) {
        self.varint(u64::from(field) << 3 | 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// There even if it is false.
    pub(super) fn truth(&mut self, field: u32, value: bool) {
        self.varint(u64::from(field) << 3);
        self.varint(value.into());
    }

    pub(super) fn text(&mut self, field: u32, value: &str) {
        if !value.is_empty() {
            self.bytes(field, value.as_bytes());
        }
    }

    /// There even if it is empty: its presence says something.
    pub(super) fn message(&mut self, field: u32, build: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        build(&mut inner);
        self.bytes(field, &inner.0);
    }

    /// Numbers one after another. Nothing if there are none.
    pub(super) fn doubles(&mut self, field: u32, values: &[f64]) {
        if !values.is_empty() {
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            self.bytes(field, &bytes);
        }
    }

    pub(super) fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut value: u64) {
        while value > 127 {
            self.0.push(value as u8 & 127 | 128);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
