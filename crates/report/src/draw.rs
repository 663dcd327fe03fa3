//! What all plots share: the font, the colours, and how a drawing becomes an SVG or a PNG.
//!
//! The font is compiled in, so that a plot is the same on a machine that has none.

use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

/// Of marks and labels.
pub(crate) const FONT: (&str, u32) = ("sans-serif", 13);
/// Lines are drawn with these in turn; they can be told apart by the colour-blind (Okabe and Ito 2008).
pub(crate) const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// Why there is no plot.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot: {0}")]
pub struct DrawError(pub(crate) String);

/// Something that can be drawn on any backend.
pub(crate) trait Draw {
    /// Width and height in pixels.
    fn size(&self) -> (u32, u32);

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), DrawError>;
}

pub(crate) fn svg(plot: &impl Draw) -> Result<String, DrawError> {
    use_own_font();
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, plot.size()).into_drawing_area();
    draw_on_white(plot, &area)?;
    drop(area);
    Ok(text)
}

pub(crate) fn png(plot: &impl Draw) -> Result<Vec<u8>, DrawError> {
    use_own_font();
    let (width, height) = plot.size();
    let mut pixels = vec![0; 3 * width as usize * height as usize];
    let area = BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area();
    draw_on_white(plot, &area)?;
    drop(area);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(file)
}

fn draw_on_white<B: DrawingBackend>(
    plot: &impl Draw,
    area: &DrawingArea<B, Shift>,
) -> Result<(), DrawError> {
    area.fill(&WHITE).map_err(failed)?;
    plot.draw(area)?;
    area.present().map_err(failed)
}

pub(crate) fn failed(error: impl std::fmt::Display) -> DrawError {
    DrawError(error.to_string())
}

fn use_own_font() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // It can only fail for bytes that are no font.
        let _ = register_font(FONT.0, FontStyle::Normal, dejavu::sans::regular());
    });
}
