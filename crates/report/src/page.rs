//! A report as one HTML page that needs nothing else: no network, no other file.
//!
//! Charts are drawn in the browser by [uPlot](https://github.com/leeoniya/uPlot) (MIT, in `assets/uplot`), which zooms
//! and stays quick with a hundred thousand points; it is compiled in.

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment};
use serde::Serialize;

use crate::draw::COLORS;
use crate::line_plot::thinned;
use crate::smooth::usual_weight;

/// A line of more points is thinned as in plots: more would make pages of many megabytes.
const MOST_POINTS: usize = 10_000;

/// One run, or several side by side.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Page {
    /// Above all else.
    pub title: String,
    /// Below it.
    pub subtitle: String,
    /// What the table of runs tells of each, besides its name.
    pub columns: Vec<String>,
    /// In the order of the table and the legends.
    pub runs: Vec<PageRun>,
    /// Numbers over steps.
    #[serde(skip)]
    pub charts: Vec<Chart>,
    /// Commands that go on from here.
    pub next: Vec<NextCommand>,
    /// What models have written.
    pub samples: Vec<PageSample>,
    /// A row each key.
    pub config: Vec<ConfigRow>,
    /// Of one run: on what it ran.
    pub environment: Vec<(String, String)>,
}

/// A row of the table of runs.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PageRun {
    /// What legends call it.
    pub name: String,
    /// One for each column.
    pub cells: Vec<String>,
}

/// One measure over steps.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    /// The measure.
    pub title: String,
    /// A line each run, or several.
    pub lines: Vec<ChartLine>,
}

/// A line of a chart.
#[derive(Debug, Clone, Default)]
pub struct ChartLine {
    /// For the legend.
    pub name: String,
    /// Which of the colours.
    pub color: usize,
    /// Whether the page draws an average over it.
    pub is_smoothed: bool,
    /// By ascending x; what is not finite is a gap.
    pub points: Vec<(f64, f64)>,
}

/// A command to copy.
#[derive(Debug, Clone, Serialize)]
pub struct NextCommand {
    /// What it does.
    pub what: String,
    /// The command.
    pub text: String,
}

/// A continuation.
#[derive(Debug, Clone, Serialize)]
pub struct PageSample {
    /// Which run's, and of which step.
    pub of: String,
    /// What was given.
    pub prompt: String,
    /// What the model wrote.
    pub continuation: String,
}

/// A key of the config.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConfigRow {
    /// Its dotted path.
    pub key: String,
    /// One for each run.
    pub values: Vec<String>,
    /// Where it comes from; empty if not known, or if there are several runs.
    pub origin: String,
}

/// What the template refers to.
#[derive(Serialize)]
struct Context<'a> {
    #[serde(flatten)]
    page: &'a Page,
    /// Of the runs.
    colors: Vec<String>,
    has_origins: bool,
    /// Logarithm of the number of points that the page averages over at first.
    smoothing: String,
    data: String,
    css: &'a str,
    js: &'a str,
    uplot_css: &'a str,
    uplot_js: &'a str,
}

#[derive(Serialize)]
struct Data {
    charts: Vec<DataChart>,
}

#[derive(Serialize)]
struct DataChart {
    title: String,
    x_label: &'static str,
    lines: Vec<DataLine>,
}

#[derive(Serialize)]
struct DataLine {
    name: String,
    color: String,
    is_smoothed: bool,
    x: Vec<f64>,
    y: Vec<Option<f64>>,
}

impl Page {
    /// The text of the HTML file. What runs have written of themselves is escaped.
    ///
    /// # Errors
    /// If the template does not fit, which a test excludes.
    pub fn html(&self) -> Result<String, minijinja::Error> {
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        let template = include_str!("../assets/report.html.jinja");
        let template = environment.template_from_named_str("report.html", template)?;
        let lines = self.charts.iter().flat_map(|chart| &chart.lines);
        let longest = lines.map(|line| line.points.len()).max().unwrap_or(0);
        let over = 1.0 / (1.0 - usual_weight(longest.min(MOST_POINTS)));
        template.render(Serde(&Context {
            page: self,
            colors: (0..self.runs.len()).map(css_color).collect(),
            has_origins: self.config.iter().any(|row| !row.origin.is_empty()),
            smoothing: format!("{:.1}", over.log10()),
            data: self.data(),
            css: include_str!("../assets/report.css"),
            js: include_str!("../assets/report.js"),
            uplot_css: include_str!("../assets/uplot/uPlot.min.css"),
            uplot_js: include_str!("../assets/uplot/uPlot.iife.min.js"),
        }))
    }

    /// The numbers as JSON that can stand in a script element.
    fn data(&self) -> String {
        let line = |line: &ChartLine| {
            let points = thinned(&line.points, MOST_POINTS);
            DataLine {
                name: line.name.clone(),
                color: css_color(line.color),
                is_smoothed: line.is_smoothed,
                x: points.iter().map(|point| point.0).collect(),
                y: points
                    .iter()
                    .map(|point| Some(point.1).filter(|y| y.is_finite()))
                    .collect(),
            }
        };
        let chart = |chart: &Chart| DataChart {
            title: chart.title.clone(),
            x_label: "step",
            lines: chart.lines.iter().map(line).collect(),
        };
        let data = Data {
            charts: self.charts.iter().map(chart).collect(),
        };
        // `</script>` in a name would end the element.
        serde_json::to_string(&data)
            .unwrap_or_default()
            .replace('<', "\\u003c")
    }
}

fn css_color(nth: usize) -> String {
    let color = COLORS[nth % COLORS.len()];
    format!("rgb({}, {}, {})", color.0, color.1, color.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKUP: &str = "</script><b>&\"";

    #[test]
    fn what_runs_say_of_themselves_is_text_and_nothing_is_loaded() {
        let hostile = || MARKUP.to_owned();
        let line = ChartLine {
            name: hostile(),
            points: vec![(1.0, 2.5), (2.0, f64::NAN)],
            ..ChartLine::default()
        };
        let page = Page {
            title: hostile(),
            subtitle: hostile(),
            columns: vec![hostile()],
            runs: vec![PageRun {
                name: hostile(),
                cells: vec![hostile()],
            }],
            charts: vec![Chart {
                title: hostile(),
                lines: vec![line],
            }],
            next: vec![NextCommand {
                what: hostile(),
                text: hostile(),
            }],
            samples: vec![PageSample {
                of: hostile(),
                prompt: hostile(),
                continuation: hostile(),
            }],
            config: vec![ConfigRow {
                key: hostile(),
                values: vec![hostile()],
                origin: hostile(),
            }],
            environment: vec![(hostile(), hostile())],
        };
        let html = page.html().unwrap();
        assert!(!html.contains(MARKUP) && !html.contains("<b>"), "{html}");
        assert_eq!(html.matches("</script>").count(), 3);
        assert!(html.contains("[2.5,null]"));
        for loaded in ["src=", "href=", "@import", "url(", "fetch("] {
            assert!(!html.contains(loaded), "{loaded}");
        }
    }
}
