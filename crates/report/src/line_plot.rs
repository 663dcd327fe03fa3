//! Lines over a common axis, such as losses over steps, as SVG or PNG.
//!
//! Points that are not finite, or not positive on a logarithmic axis, leave a gap. A line of more points than the plot
//! is wide is thinned: of each stretch its least and greatest value are kept, so that a spike stays.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::draw::{self, COLORS, Draw, DrawError, FONT, failed};
use crate::number;

const SIZE: (u32, u32) = (900, 480);
/// A line of more points is thinned.
const MOST_POINTS: usize = 2 * SIZE.0 as usize;

/// Some lines with their axes.
#[derive(Debug, Clone, Default)]
pub struct LinePlot {
    /// Written above.
    pub title: String,
    /// What the horizontal axis counts.
    pub x_label: String,
    /// Whether the horizontal axis is logarithmic.
    pub x_is_log: bool,
    /// Whether the vertical axis is logarithmic.
    pub y_is_log: bool,
    /// In the order of the legend.
    pub lines: Vec<Line>,
}

/// One of them.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// For the legend.
    pub name: String,
    /// By ascending x.
    pub points: Vec<(f64, f64)>,
    /// Which of the colours: lines that belong together have the same.
    pub color: usize,
    /// Whether it stands behind the others: raw values behind smoothed ones.
    pub is_faint: bool,
}

impl LinePlot {
    /// As text of an SVG file.
    ///
    /// # Errors
    /// If the plotting library fails.
    pub fn svg(&self) -> Result<String, DrawError> {
        draw::svg(self)
    }

    /// As bytes of a PNG file.
    ///
    /// # Errors
    /// If the plotting library fails.
    pub fn png(&self) -> Result<Vec<u8>, DrawError> {
        draw::png(self)
    }

    /// The points of a line, in stretches without gaps.
    fn stretches(&self, line: &Line) -> Vec<Vec<(f64, f64)>> {
        let fits = |value: f64, is_log: bool| value.is_finite() && (!is_log || value > 0.0);
        let is_shown = |&(x, y): &(f64, f64)| fits(x, self.x_is_log) && fits(y, self.y_is_log);
        let parts = line.points.split(|point| !is_shown(point));
        let parts = parts.filter(|part| !part.is_empty());
        parts.map(|part| thinned(part, MOST_POINTS)).collect()
    }

    fn draw_on<B, X, Y>(
        &self,
        area: &DrawingArea<B, Shift>,
        stretches: &[Vec<Vec<(f64, f64)>>],
        (x, y): (X, Y),
    ) -> Result<(), DrawError>
    where
        B: DrawingBackend,
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT.0, 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .label_style(FONT)
            .x_desc(&self.x_label)
            .x_label_formatter(&|x| number::mark(*x))
            .y_label_formatter(&|y| number::mark(*y))
            .draw()
            .map_err(failed)?;
        for (line, stretches) in self.lines.iter().zip(stretches) {
            let color = COLORS[line.color % COLORS.len()];
            let style = if line.is_faint {
                color.mix(0.3).stroke_width(1)
            } else {
                color.stroke_width(2)
            };
            for (nth, stretch) in stretches.iter().enumerate() {
                // A lone point is no line.
                let dots = stretch.iter().filter(|_| stretch.len() == 1);
                let dots = dots.map(|&at| Circle::new(at, 2, color.filled()));
                chart.draw_series(dots).map_err(failed)?;
                let series = LineSeries::new(stretch.iter().copied(), style);
                let drawn = chart.draw_series(series).map_err(failed)?;
                if nth == 0 {
                    drawn
                        .label(&line.name)
                        .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
                }
            }
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.2))
            .label_font(FONT)
            .position(SeriesLabelPosition::UpperRight)
            .draw()
            .map_err(failed)
    }
}

impl Draw for LinePlot {
    fn size(&self) -> (u32, u32) {
        SIZE
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), DrawError> {
        let lines = self.lines.iter();
        let stretches: Vec<_> = lines.map(|line| self.stretches(line)).collect();
        let points = || stretches.iter().flatten().flatten();
        let x = span(points().map(|point| point.0), self.x_is_log, 0.0);
        let y = span(points().map(|point| point.1), self.y_is_log, 0.04);
        let ((a, b), (c, d)) = (x, y);
        match (self.x_is_log, self.y_is_log) {
            (false, false) => self.draw_on(area, &stretches, (a..b, c..d)),
            (true, false) => self.draw_on(area, &stretches, ((a..b).log_scale(), c..d)),
            (false, true) => self.draw_on(area, &stretches, (a..b, (c..d).log_scale())),
            (true, true) => {
                let axes = ((a..b).log_scale(), (c..d).log_scale());
                self.draw_on(area, &stretches, axes)
            }
        }
    }
}

/// From the least to the greatest value, with a margin that is a part of their distance; never empty.
pub(crate) fn span(values: impl Iterator<Item = f64>, is_log: bool, margin: f64) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    let (low, high) = values.fold(start, |(low, high), x| (low.min(x), high.max(x)));
    if low > high {
        return if is_log { (1.0, 10.0) } else { (0.0, 1.0) };
    }
    if is_log {
        let factor = (high / low).powf(margin).max(1.01);
        return (low / factor, high * factor);
    }
    match (high - low) * margin {
        _ if high == low => {
            let room = if low == 0.0 { 1.0 } else { 0.05 * low.abs() };
            (low - room, high + room)
        }
        room => (low - room, high + room),
    }
}

/// At most `most` of the points: of each stretch the one with the least and the one with the greatest y.
pub(crate) fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let size = points.len().div_ceil(most / 2);
    let kept = points.chunks(size).flat_map(|chunk| {
        let by_y = |&a: &usize, &b: &usize| chunk[a].1.total_cmp(&chunk[b].1);
        let least = (0..chunk.len()).min_by(by_y).unwrap_or_default();
        let greatest = (0..chunk.len()).max_by(by_y).unwrap_or_default();
        let (first, last) = (least.min(greatest), least.max(greatest));
        let both = [Some(first), (last > first).then_some(last)];
        both.into_iter().flatten().map(|index| chunk[index])
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> LinePlot {
        let line = Line {
            name: "train < 1".into(),
            points,
            ..Line::default()
        };
        LinePlot {
            title: "loss".into(),
            x_label: "step".into(),
            lines: vec![line],
            ..LinePlot::default()
        }
    }

    /// Library upgrades may change looks, not that all of it is there, well-formed and escaped.
    #[test]
    fn a_plot_has_its_line_title_axis_and_legend() {
        let svg = plot(vec![(1.0, 5.0), (2.0, 4.0), (3.0, 3.5)])
            .svg()
            .unwrap();
        for text in ["loss", "step", "train &lt; 1", "<polyline"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let png = plot(vec![(1.0, 5.0), (2.0, 4.0)]).png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&png))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), SIZE);
        let blue = COLORS[0];
        let line = [blue.0, blue.1, blue.2];
        assert!(pixels.chunks(3).filter(|&pixel| pixel == line).count() > 100);
        // Letters, in black: the font was found.
        assert!(pixels.chunks(3).filter(|&pixel| pixel == [0, 0, 0]).count() > 100);
    }

    #[test]
    fn what_cannot_be_shown_is_a_gap_and_nothing_is_an_empty_plot() {
        let holes = vec![
            (1.0, 2.0),
            (2.0, f64::NAN),
            (3.0, 1.0),
            (4.0, 0.0),
            (5.0, 1.0),
        ];
        let mut plot = plot(holes);
        assert_eq!(plot.stretches(&plot.lines[0]).len(), 2);
        plot.y_is_log = true;
        assert_eq!(plot.stretches(&plot.lines[0]).len(), 3);
        plot.x_is_log = true;
        plot.svg().unwrap();
        for points in [vec![], vec![(1.0, f64::INFINITY)], vec![(7.0, 3.0)]] {
            plot.lines[0].points = points;
            plot.svg().unwrap();
        }
    }

    #[test]
    fn a_long_line_keeps_its_spikes() {
        let mut points: Vec<_> = (0..1_000_000).map(|x| (f64::from(x), 1.0)).collect();
        points[777_777].1 = 50.0;
        points[123_456].1 = 0.1;
        let kept = thinned(&points, MOST_POINTS);
        assert!(kept.len() <= MOST_POINTS && kept.len() > MOST_POINTS / 4);
        assert!(kept.contains(&(777_777.0, 50.0)) && kept.contains(&(123_456.0, 0.1)));
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
