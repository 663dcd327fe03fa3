//! An array for NumPy: `.npy`, version 1.0, little-endian f32 `[rows, width]`, row by row.
//!
//! The header, with what comes before it, is a multiple of 64 bytes long and ends with a line end.
//! Source: numpy.lib.format.

/// The bytes of the file.
pub(super) fn bytes(rows: &[Vec<f32>]) -> Vec<u8> {
    const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
    let width = rows.first().map_or(0, Vec::len);
    let mut header = format!(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {width}), }}",
        rows.len()
    );
    let before = MAGIC.len() + 2 + header.len() + 1;
    header.push_str(&" ".repeat(before.next_multiple_of(64) - before));
    header.push('\n');
    let mut bytes = MAGIC.to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(rows.iter().flatten().flat_map(|x| x.to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_says_the_shape_and_is_aligned() {
        let bytes = bytes(&[vec![1.0, 2.0], vec![3.0, -4.5], vec![0.0, 0.5]]);
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
        let len = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        assert_eq!((10 + len) % 64, 0);
        let header = str::from_utf8(&bytes[10..10 + len]).unwrap();
        assert!(header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"));
        assert!(header.ends_with('\n'));
        let data = bytes[10 + len..].chunks_exact(4);
        let data: Vec<f32> = data
            .map(|it| f32::from_le_bytes(it.try_into().unwrap()))
            .collect();
        assert_eq!(data, [1.0, 2.0, 3.0, -4.5, 0.0, 0.5]);
    }
}
