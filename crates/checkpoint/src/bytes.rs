//! Sizes as people read them: `1.23 GB`, decimal units as disks are sold.

use std::fmt;

pub(crate) struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["bytes", "kB", "MB", "GB", "TB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 999.995 && unit + 1 < UNITS.len() {
            value /= 1000.0;
            unit += 1;
        }
        if unit == 0 {
            write!(f, "{} bytes", self.0)
        } else {
            write!(f, "{value:.2} {}", UNITS[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn sizes_read_naturally() {
        assert_eq!(Bytes(0).to_string(), "0 bytes");
        assert_eq!(Bytes(999).to_string(), "999 bytes");
        assert_eq!(Bytes(1_000).to_string(), "1.00 kB");
        assert_eq!(Bytes(999_999).to_string(), "1.00 MB");
        assert_eq!(Bytes(5_000_000_000).to_string(), "5.00 GB");
    }
}
