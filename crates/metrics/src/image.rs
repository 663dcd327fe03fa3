//! A picture of a run, as a PNG file.

/// Drawn at the end of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// What it shows: `plots/loss`.
    pub name: String,
    /// The bytes of the file.
    pub png: Vec<u8>,
}

impl Image {
    /// Width and height, as the head of the file has them; zeros if it is no PNG.
    pub fn size(&self) -> (u32, u32) {
        let number = |at: usize| {
            let bytes = self.png.get(at..at + 4)?;
            Some(u32::from_be_bytes(bytes.try_into().ok()?))
        };
        // Signature, then the length and the name of the first chunk, IHDR.
        match (number(16), number(20)) {
            (Some(width), Some(height)) if self.png.starts_with(b"\x89PNG") => (width, height),
            _ => (0, 0),
        }
    }
}
