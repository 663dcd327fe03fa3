//! The plots of one run.

use tt_report::{Line, LinePlot, smoothed, usual_weight};

use super::recorded::{Curve, Recorded};

/// Name of the file and plot, of those measures that the run has.
pub(super) fn of(run: &Recorded, x_is_log: bool) -> Vec<(&'static str, LinePlot)> {
    let plot = |title: &str, lines: Vec<Line>| LinePlot {
        title: title.to_owned(),
        x_label: "step".to_owned(),
        x_is_log,
        lines,
        ..LinePlot::default()
    };
    let mut plots = Vec::new();
    let mut losses = Vec::new();
    if let Some(loss) = run.curve("loss") {
        losses.extend(raw_and_smoothed("training", loss));
    }
    if let Some(loss) = run.curve("val_loss") {
        losses.push(line("validation", loss.clone(), 1));
    }
    if !losses.is_empty() {
        plots.push(("loss", plot("loss, nats/token", losses)));
    }
    if let Some(rate) = run.curve("lr") {
        plots.push((
            "lr",
            plot("learning rate", vec![line("lr", rate.clone(), 0)]),
        ));
    }
    for (key, file, title) in [
        ("grad_norm", "grad_norm", "norm of the gradient"),
        ("tokens_per_second", "throughput", "tokens/s"),
    ] {
        if let Some(curve) = run.curve(key) {
            plots.push((file, plot(title, raw_and_smoothed(title, curve))));
        }
    }
    plots
}

fn line(name: &str, points: Curve, color: usize) -> Line {
    Line {
        name: name.to_owned(),
        points,
        color,
        is_faint: false,
    }
}

/// One line if there is too little to smooth.
fn raw_and_smoothed(name: &str, raw: &Curve) -> Vec<Line> {
    let weight = usual_weight(raw.len());
    if weight == 0.0 {
        return vec![line(name, raw.clone(), 0)];
    }
    let averages = smoothed(raw.iter().map(|point| point.1), weight);
    let points = raw.iter().zip(averages).map(|(point, y)| (point.0, y));
    vec![
        Line {
            is_faint: true,
            ..line(name, raw.clone(), 0)
        },
        line(&format!("{name}, smoothed"), points.collect(), 0),
    ]
}
