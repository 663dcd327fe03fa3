//! `sweep.svg`: the metric against each swept key, one panel a key, one dot a finished job.
//!
//! Numbers are placed on a line, on a logarithmic one if they are positive and span a factor of ten or more (learning
//! rates); any other values stand side by side in the order of the jobs. The best job is filled.

use std::fmt::Write as _;

use crate::sweep::report::{Report, Row};

const PANEL: (f64, f64) = (360.0, 280.0); // width, height
/// Space around the axes of a panel: left, top, right, bottom.
const MARGIN: (f64, f64, f64, f64) = (70.0, 20.0, 20.0, 50.0);

/// None if nothing was swept or nothing finished.
pub(crate) fn svg(report: &Report) -> Option<String> {
    let best = report.best()?.num;
    let rows: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| row.status == crate::sweep::job::Status::Finished && row.metric.is_some())
        .collect();
    if report.keys.is_empty() {
        return None;
    }
    let (width, height) = (PANEL.0 * report.keys.len() as f64, PANEL.1);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, key) in report.keys.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<g transform=\"translate({} 0)\">",
            PANEL.0 * index as f64
        );
        panel(&mut svg, key, index, &rows, report, best);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

fn panel(svg: &mut String, key: &str, index: usize, rows: &[&Row], report: &Report, best: usize) {
    let (left, top) = (MARGIN.0, MARGIN.1);
    let (right, bottom) = (PANEL.0 - MARGIN.2, PANEL.1 - MARGIN.3);
    let values: Vec<&str> = rows.iter().map(|row| row.values[index].as_str()).collect();
    let x_axis = Axis::of_values(&values);
    let metrics: Vec<f64> = rows.iter().filter_map(|row| row.metric).collect();
    let y_axis = Axis::of_numbers(&metrics, false);
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
        escaped(&report.metric)
    );
    for (row, value) in rows.iter().zip(&values) {
        let (Some(metric), Some(at)) = (row.metric, x_axis.place(value)) else {
            continue;
        };
        let fill = if row.num == best { "#1f77b4" } else { "white" };
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"#1f77b4\">\
             <title>job {}: {}</title></circle>",
            x(at),
            y(y_axis.place_number(metric)),
            row.num,
            escaped(&format!("{key}={value}, {} {metric}", report.metric)),
        );
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

/// Where values stand, from 0 to 1.
struct Axis {
    scale: Scale,
    ticks: Vec<(f64, String)>,
}

enum Scale {
    /// From the least to the greatest value, of their logarithms if `is_log`.
    Numbers {
        least: f64,
        greatest: f64,
        is_log: bool,
    },
    Names(Vec<String>),
}

impl Axis {
    fn of_values(values: &[&str]) -> Self {
        let numbers: Option<Vec<f64>> = values.iter().map(|value| number(value)).collect();
        if let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty()) {
            return Self::of_numbers(&numbers, true);
        }
        let mut names: Vec<String> = Vec::new();
        for value in values {
            if !names.iter().any(|name| name == value) {
                names.push((*value).to_owned());
            }
        }
        let mut axis = Self {
            ticks: Vec::new(),
            scale: Scale::Names(names.clone()),
        };
        let tick = |name: String| Some((axis.place(&name)?, name));
        axis.ticks = names.into_iter().filter_map(tick).collect();
        axis
    }

    fn of_numbers(numbers: &[f64], may_be_log: bool) -> Self {
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let is_log = may_be_log && least > 0.0 && greatest >= 10.0 * least;
        let scale = Scale::Numbers {
            least,
            greatest,
            is_log,
        };
        let mut axis = Self {
            scale,
            ticks: Vec::new(),
        };
        let middle = match is_log {
            true => (least * greatest).sqrt(),
            false => (least + greatest) / 2.0,
        };
        let mut marks = vec![least, middle, greatest];
        marks.dedup();
        let tick = |mark: f64| (axis.place_number(mark), label(mark));
        axis.ticks = marks.into_iter().map(tick).collect();
        axis
    }

    fn place(&self, value: &str) -> Option<f64> {
        match &self.scale {
            Scale::Numbers { .. } => Some(self.place_number(number(value)?)),
            Scale::Names(names) => {
                let index = names.iter().position(|name| name == value)?;
                Some((index as f64 + 0.5) / names.len() as f64)
            }
        }
    }

    fn place_number(&self, number: f64) -> f64 {
        let Scale::Numbers {
            least,
            greatest,
            is_log,
        } = self.scale
        else {
            return 0.5;
        };
        let scale = |x: f64| if is_log { x.ln() } else { x };
        let (low, high) = (scale(least), scale(greatest));
        if high > low {
            // A dot at either end stands clear of the frame.
            0.06 + 0.88 * (scale(number) - low) / (high - low)
        } else {
            0.5
        }
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

fn label(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        format!("{number:.1e}")
    } else {
        let text = format!("{number:.4}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learning_rates_stand_on_a_logarithmic_axis() {
        let axis = Axis::of_values(&["1e-5", "1e-3", "1e-4"]);
        let places: Vec<_> = ["1e-5", "1e-4", "1e-3"]
            .iter()
            .map(|value| axis.place(value).unwrap())
            .collect();
        assert!((places[0] - 0.06).abs() < 1e-9, "{places:?}");
        assert!((places[1] - 0.5).abs() < 1e-9, "{places:?}");
        assert!((places[2] - 0.94).abs() < 1e-9, "{places:?}");
    }

    #[test]
    fn close_numbers_stand_on_a_linear_axis() {
        let axis = Axis::of_values(&["1", "2", "5"]);
        assert!((axis.place("2").unwrap() - (0.06 + 0.88 / 4.0)).abs() < 1e-9);
    }

    #[test]
    fn names_stand_side_by_side() {
        let axis = Axis::of_values(&["cosine", "3", "cosine"]);
        assert_eq!(axis.place("cosine"), Some(0.25));
        assert_eq!(axis.place("3"), Some(0.75));
    }

    #[test]
    fn one_value_stands_in_the_middle() {
        assert_eq!(Axis::of_values(&["7", "7"]).place("7"), Some(0.5));
    }

    #[test]
    fn labels_are_short_and_markup_is_escaped() {
        assert_eq!(label(0.00001), "1.0e-5");
        assert_eq!(label(2.5), "2.5");
        assert_eq!(label(3.0), "3");
        assert_eq!(escaped("a<b&c"), "a&lt;b&amp;c");
    }
}
