//! A scatter plot as SVG: a number against each of several keys, one panel a key, one dot a point.

use std::fmt::Write as _;

use crate::axis::Axis;

/// What is plotted.
pub struct Scatter {
    /// What the number is called.
    pub measure: String,
    /// One panel each.
    pub keys: Vec<String>,
    pub points: Vec<Point>,
}

pub struct Point {
    pub name: String,
    /// One for each key.
    pub values: Vec<String>,
    pub measured: f64,
    /// Whether its dot is filled.
    pub is_best: bool,
}

const PANEL: (f64, f64) = (360.0, 280.0); // width, height
/// Space around the axes of a panel: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (70.0, 20.0, 20.0, 50.0);

impl Scatter {
    pub fn svg(&self) -> String {
        let (width, height) = (PANEL.0 * self.keys.len() as f64, PANEL.1);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for (index, key) in self.keys.iter().enumerate() {
            let _ = writeln!(
                svg,
                "<g transform=\"translate({} 0)\">",
                PANEL.0 * index as f64
            );
            self.panel(&mut svg, key, index);
            svg.push_str("</g>\n");
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn panel(&self, svg: &mut String, key: &str, index: usize) {
        let (left, top) = (MARGIN.0, MARGIN.1);
        let (right, bottom) = (PANEL.0 - MARGIN.2, PANEL.1 - MARGIN.3);
        let values = self.points.iter().map(|point| point.values[index].as_str());
        let x_axis = Axis::of_values(&values.collect::<Vec<_>>());
        let measured = self.points.iter().map(|point| point.measured);
        let y_axis = Axis::of_numbers(&measured.collect::<Vec<_>>(), false);
        let x = |at: f64| left + (right - left) * at;
        let y = |at: f64| bottom - (bottom - top) * at;

        let _ = writeln!(
            svg,
            "<path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>"
        );
        for (at, label) in &x_axis.ticks {
            text(svg, x(*at), bottom + 16.0, "middle", label);
        }
        for (at, label) in &y_axis.ticks {
            text(svg, left - 6.0, y(*at) + 4.0, "end", label);
        }
        text(svg, (left + right) / 2.0, bottom + 38.0, "middle", key);
        let (label_x, label_y) = (14.0, (top + bottom) / 2.0);
        let _ = writeln!(
            svg,
            "<text transform=\"translate({label_x} {label_y}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(&self.measure)
        );
        for point in &self.points {
            let (value, measured) = (&point.values[index], point.measured);
            let Some(at) = x_axis.place(value) else {
                continue;
            };
            let fill = if point.is_best { "#1f77b4" } else { "white" };
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"#1f77b4\">\
                 <title>{}: {}</title></circle>",
                x(at),
                y(y_axis.place_number(measured)),
                escaped(&point.name),
                escaped(&format!("{key}={value}, {} {measured}", self.measure)),
            );
        }
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[test]
fn markup_is_escaped() {
    assert_eq!(escaped("a<b&c"), "a&lt;b&amp;c");
}
