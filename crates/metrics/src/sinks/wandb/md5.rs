//! MD5, which the server names content by. It keeps nothing safe here.
//!
//! Source: RFC 1321.

use std::io::{self, Read};

/// Bytes of a block.
const BLOCK: usize = 64;

/// By round, four each.
const SHIFTS: [[u32; 4]; 4] = [
    [7, 12, 17, 22],
    [5, 9, 14, 20],
    [4, 11, 16, 23],
    [6, 10, 15, 21],
];

/// Of all that `from` gives; an error of it is handed on.
pub(super) fn md5(mut from: impl Read) -> io::Result<[u8; 16]> {
    let table = table();
    let mut state = [0x6745_2301u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
    let mut bytes = vec![0; 1 << 20];
    let mut length = 0u64;
    loop {
        let filled = fill(&mut from, &mut bytes)?;
        length += filled as u64;
        if filled == bytes.len() {
            take(&mut state, &table, &bytes);
            continue;
        }
        // The end: a one bit, zeros, and the length in bits as the last eight bytes of a block.
        let mut rest = bytes[..filled].to_vec();
        rest.push(0x80);
        while rest.len() % BLOCK != BLOCK - 8 {
            rest.push(0);
        }
        rest.extend_from_slice(&(length.wrapping_mul(8)).to_le_bytes());
        take(&mut state, &table, &rest);
        break;
    }
    let mut digest = [0; 16];
    for (part, word) in digest.chunks_exact_mut(4).zip(state) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    Ok(digest)
}

/// As many bytes as there are, up to the length of the buffer.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match from.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// `floor(2^32 |sin(i + 1)|)`.
fn table() -> [u32; 64] {
    std::array::from_fn(|i| ((i as f64 + 1.0).sin().abs() * 4_294_967_296.0) as u32)
}

/// Whole blocks.
fn take(state: &mut [u32; 4], table: &[u32; 64], bytes: &[u8]) {
    for block in bytes.chunks_exact(BLOCK) {
        let mut words = [0u32; 16];
        for (word, part) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_le_bytes([part[0], part[1], part[2], part[3]]);
        }
        let [mut a, mut b, mut c, mut d] = *state;
        for i in 0..64 {
            let (mixed, word) = match i / 16 {
                0 => ((b & c) | (!b & d), i),
                1 => ((d & b) | (!d & c), 5 * i + 1),
                2 => (b ^ c ^ d, 3 * i + 5),
                _ => (c ^ (b | !d), 7 * i),
            };
            let sum = a
                .wrapping_add(mixed)
                .wrapping_add(table[i])
                .wrapping_add(words[word % 16]);
            (a, d, c) = (d, c, b);
            b = b.wrapping_add(sum.rotate_left(SHIFTS[i / 16][i % 4]));
        }
        for (sum, part) in state.iter_mut().zip([a, b, c, d]) {
            *sum = sum.wrapping_add(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_rfc() {
        let digits = "1234567890".repeat(8);
        for (text, expected) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            (&digits, "57edf4a22be3c955ac49da2e2107b67a"),
            // Just no room for the length in the block.
            (&digits[..56], "49f193adce178490e34d1b3a4ec0064c"),
        ] {
            let digest = md5(text.as_bytes()).unwrap();
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(digest, expected, "{text}");
        }
    }
}
