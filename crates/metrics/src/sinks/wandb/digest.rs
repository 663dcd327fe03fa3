//! Digests, which the server names content by. They keep nothing safe here.

use std::io::{self, Read};

use md5::{Digest, Md5};

/// The MD5 of all that `from` gives; an error of it is handed on.
pub(super) fn md5(mut from: impl Read) -> io::Result<[u8; 16]> {
    let mut hasher = Md5::new();
    io::copy(&mut from, &mut hasher)?;
    Ok(hasher.finalize().into())
}

/// In hexadecimal.
pub(super) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
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
            assert_eq!(hex(&digest), expected, "{text}");
        }
    }
}
