//! What is made of a run's records for people: `plots/` and `report.html` in its folder, or one page over several runs.
//!
//! ```text
//! RUN/report.html               one page that needs nothing else, see `tt_report::Page`
//! RUN/plots/loss.svg .png       raw and smoothed, training and validation
//!           lr.svg .png  grad_norm.svg .png  throughput.svg .png
//! ```

mod page;
mod plots;
mod recorded;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tt_metrics::Image;
use tt_run::run_dir::REPORT;

use recorded::Recorded;

/// Writes the page and the plots of the run in `folder` there, and gives the path of the page, and the plots.
pub(crate) fn write_run(folder: &Path, x_is_log: bool) -> anyhow::Result<(PathBuf, Vec<Image>)> {
    let run = Recorded::read(folder)?;
    let plots_dir = folder.join("plots");
    fs::create_dir_all(&plots_dir)
        .with_context(|| format!("cannot create {}", plots_dir.display()))?;
    let mut images = Vec::new();
    for (name, plot) in plots::of(&run, x_is_log) {
        write(
            &plots_dir.join(format!("{name}.svg")),
            plot.svg()?.as_bytes(),
        )?;
        let image = Image {
            name: format!("plots/{name}"),
            png: plot.png()?,
        };
        write(&plots_dir.join(format!("{name}.png")), &image.png)?;
        images.push(image);
    }
    let path = folder.join(REPORT);
    write(&path, page::of_run(&run).html()?.as_bytes())?;
    Ok((path, images))
}

/// Writes one page over the runs in `folders`.
pub(crate) fn write_comparison(folders: &[PathBuf], to: &Path) -> anyhow::Result<()> {
    let runs = folders.iter().map(|folder| Recorded::read(folder));
    let runs: Vec<_> = runs.collect::<anyhow::Result<_>>()?;
    write(to, page::of_runs(&runs).html()?.as_bytes())
}

/// In place of what was there, never half of it.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    tt_disk::replace(path, |file| std::io::Write::write_all(file, bytes))?;
    Ok(())
}
