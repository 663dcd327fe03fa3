//! A scatter plot: a number against each of several keys, one panel a key, one dot a point, the best one filled.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::axis::Axis;
use crate::draw::{self, COLORS, Draw, DrawError, FONT, failed};
use crate::line_plot::span;
use crate::number;

const PANEL: (u32, u32) = (380, 300);

/// What is plotted.
pub struct Scatter {
    /// What the number is called.
    pub measure: String,
    /// One panel each.
    pub keys: Vec<String>,
    /// One dot each, in every panel.
    pub points: Vec<Point>,
}

/// A dot of each panel.
pub struct Point {
    /// One for each key.
    pub values: Vec<String>,
    /// How high it is.
    pub measured: f64,
    /// Whether its dot is filled.
    pub is_best: bool,
}

impl Scatter {
    /// As text of an SVG file.
    ///
    /// # Errors
    /// If the plotting library fails.
    pub fn svg(&self) -> Result<String, DrawError> {
        draw::svg(self)
    }

    fn panel<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        index: usize,
    ) -> Result<(), DrawError> {
        let values: Vec<_> = self
            .points
            .iter()
            .map(|point| &*point.values[index])
            .collect();
        let axis = Axis::of(&values);
        let places = || values.iter().filter_map(|value| axis.place(value));
        match &axis {
            Axis::Numbers { is_log } => {
                let (low, high) = span(places(), *is_log, 0.06);
                if *is_log {
                    let x = (low..high).log_scale();
                    self.draw_on(area, index, &axis, x, &|x| number::mark(*x))
                } else {
                    self.draw_on(area, index, &axis, low..high, &|x| number::mark(*x))
                }
            }
            Axis::Names(names) => {
                let x = (-1.0..names.len() as f64).step(1.0).use_floor();
                let name = |x: &f64| {
                    let is_whole = (x - x.round()).abs() < 1e-6 && *x >= 0.0;
                    let name = is_whole.then(|| names.get(x.round() as usize)).flatten();
                    name.cloned().unwrap_or_default()
                };
                self.draw_on(area, index, &axis, x, &name)
            }
        }
    }

    fn draw_on<B, X>(
        &self,
        area: &DrawingArea<B, Shift>,
        index: usize,
        axis: &Axis,
        x: X,
        mark: &dyn Fn(&f64) -> String,
    ) -> Result<(), DrawError>
    where
        B: DrawingBackend,
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
    {
        let (low, high) = span(self.points.iter().map(|point| point.measured), false, 0.06);
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(x, low..high)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .label_style(FONT)
            .x_desc(&self.keys[index])
            .y_desc(&self.measure)
            .x_labels(5)
            .x_label_formatter(&mark)
            .y_label_formatter(&|y| number::mark(*y))
            .draw()
            .map_err(failed)?;
        let dots = self.points.iter().filter_map(|point| {
            let at = (axis.place(&point.values[index])?, point.measured);
            let style = if point.is_best {
                COLORS[0].filled()
            } else {
                COLORS[0].stroke_width(1)
            };
            Some(Circle::new(at, 4, style))
        });
        chart.draw_series(dots).map_err(failed)?;
        Ok(())
    }
}

impl Draw for Scatter {
    fn size(&self) -> (u32, u32) {
        (PANEL.0 * self.keys.len().max(1) as u32, PANEL.1)
    }

    fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), DrawError> {
        let panels = area.split_evenly((1, self.keys.len()));
        let mut panels = panels.iter().enumerate();
        panels.try_for_each(|(index, panel)| self.panel(panel, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_is_a_dot_in_each_panel_whatever_its_value_is() {
        let point = |rate: &str, schedule: &str, measured| Point {
            values: vec![rate.into(), schedule.into()],
            measured,
            is_best: measured < 2.0,
        };
        let scatter = Scatter {
            measure: "val_loss".into(),
            keys: vec!["lr".into(), "trainer/lr_scheduler".into()],
            points: vec![
                point("1e-4", "cosine", 2.5),
                point("1e-3", "co<nst", 1.5),
                point("1e-2", "cosine", 9.0),
            ],
        };
        let svg = scatter.svg().unwrap();
        assert_eq!(svg.matches("<circle").count(), 2 * 3, "{svg}");
        for text in ["val_loss", "lr", "cosine", "co&lt;nst"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
