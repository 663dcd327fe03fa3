//! What a run leaves for people: a page and plots, as a browser shows them.
//!
//! The browser is `$TT_BROWSER`, else `chromium`. Without one the test says so and passes; with `CI` set it fails.

use std::path::Path;
use std::process::Command;

use crate::harness::{Place, RunFolder};

const RUN: &[&str] = &["trainer.max_steps=30", "trainer.eval_interval=10"];

fn trained(place: &Place, folder: &str, more: &[&str]) -> RunFolder {
    let dir = format!("hydra.run.dir={folder}");
    place
        .run_nano(&[RUN, more, &[&dir]].concat())
        .with_code(0)
        .prints("report      ");
    RunFolder(place.path().join(folder))
}

/// The page as a phone shows it, after its scripts have run.
fn dom(page: &Path, options: &[&str]) -> Option<String> {
    let browser = std::env::var_os("TT_BROWSER").unwrap_or_else(|| "chromium".into());
    let profile = page.with_extension("profile");
    let output = Command::new(&browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage", // of containers, it is small
            "--virtual-time-budget=10000",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        // Nothing is loaded from elsewhere: there is no elsewhere.
        .args([
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--window-size=390,844",
        ])
        .args(options)
        .arg(format!("file://{}", page.display()))
        .output();
    match output {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        failed => {
            let why = format!("{browser:?} cannot run this test: {failed:?}");
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// The value of an attribute of the chart with a title.
fn of_chart<'a>(dom: &'a str, title: &str, attribute: &str) -> &'a str {
    let (_, figure) = dom
        .split_once(&format!("<figure data-title=\"{title}\""))
        .unwrap_or_else(|| panic!("no chart {title} in {dom}"));
    let (_, value) = figure
        .split_once(&format!("{attribute}=\""))
        .expect("the attribute");
    value.split_once('"').expect("its end").0
}

/// Adds to the unit tests of the page: that a browser draws what the run has recorded, without a network, on a narrow
/// screen.
#[test]
fn a_browser_draws_the_numbers_of_metrics_jsonl() {
    let place = Place::new();
    let run = trained(&place, "run", &["name='<b>bold</b>'"]);
    for name in ["loss", "lr", "grad_norm", "throughput"] {
        let svg = run.read(&format!("plots/{name}.svg"));
        assert!(svg.contains("<polyline"), "{name}: {svg}");
        assert!(run.join(&format!("plots/{name}.png")).is_file());
    }
    let Some(dom) = dom(&run.join("report.html"), &["--dump-dom"]) else {
        return;
    };
    let rows = run.rows();
    let last = |key: &str| {
        let mut values = rows.iter().rev().filter_map(|row| row[key].as_f64());
        values.next().expect("a row").to_string()
    };
    let losses = format!("{} {}", last("loss"), last("val_loss"));
    assert_eq!(of_chart(&dom, "loss", "data-last"), losses);
    assert_eq!(of_chart(&dom, "loss", "data-points"), "30 3");
    assert_eq!(of_chart(&dom, "lr", "data-last"), last("lr"));
    assert!(dom.contains("data-fits=\"true\""), "wider than the screen");
    assert!(dom.contains("<canvas"), "nothing is drawn");
    assert!(dom.contains("&lt;b&gt;bold&lt;/b&gt;") && !dom.contains("<b>bold"));
    // The config with where each value is from, and what to run next.
    assert!(dom.contains("argument trainer.max_steps=30"), "{dom}");
    assert!(dom.contains("tpu-train generate"), "{dom}");
}

#[test]
fn dark_screens_get_a_dark_page() {
    let place = Place::new();
    let page = place.write("page.html", &{
        let run = trained(&place, "run", &[]);
        run.read("report.html")
    });
    let brightness = |scheme: &str| {
        let shot = place.path().join("shot.png");
        let option = format!("--screenshot={}", shot.display());
        dom(
            &page,
            &[
                &option,
                &format!("--blink-settings=preferredColorScheme={scheme}"),
            ],
        )?;
        let decoder = png::Decoder::new(std::io::BufReader::new(
            std::fs::File::open(&shot).expect("a screenshot"),
        ));
        let mut reader = decoder.read_info().expect("PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
        reader.next_frame(&mut pixels).expect("pixels");
        Some(pixels[0]) // red of the first pixel: the background
    };
    if let (Some(dark), Some(light)) = (brightness("0"), brightness("1")) {
        assert!(dark < 64 && light > 192, "{dark} {light}");
    }
}

#[test]
fn runs_and_sweeps_are_compared_on_one_page() {
    let place = Place::new();
    let sweep = [
        "-m",
        "lr=1e-3,1e-4",
        "hydra.sweep.dir=sweep",
        "trainer.max_steps=2",
    ];
    place.run_nano(&sweep).with_code(0);
    let path = place.path().join("sweep/report.html");
    let page = std::fs::read_to_string(&path).expect("the page of the sweep");
    assert!(page.contains("<h1>2 runs</h1>"), "{page}");
    // The key that differs, and none that does not.
    assert!(page.contains("<code>lr</code>") && !page.contains("<code>seed</code>"));
    std::fs::remove_file(&path).unwrap();
    place
        .run(&["report", "sweep"])
        .with_code(0)
        .prints("sweep/report.html");
    place
        .run(&["report", "sweep/0", "sweep/1"])
        .with_code(0)
        .prints("report.html");
    assert!(place.path().join("report.html").is_file());
    place.run(&["report", "sweep/0", "--log-x"]).with_code(0);
    place
        .run(&["report", "nowhere"])
        .with_code(2)
        .complains("there is no run in nowhere");
    place.run(&["report"]).with_code(2).complains("report RUN");
}

#[test]
fn a_report_can_be_left_out_and_one_that_fails_fails_no_run() {
    let place = Place::new();
    let out = place.run_nano(&[
        "trainer.max_steps=1",
        "logging.report=false",
        "hydra.run.dir=a",
    ]);
    let out = out.with_code(0);
    assert!(!out.stdout.contains("report      "), "{}", out.stdout);
    assert!(!place.path().join("a/report.html").exists());
    // A file stands where the folder of plots would be.
    place.write("b/plots", "");
    place
        .run_nano(&["trainer.max_steps=1", "hydra.run.dir=b"])
        .with_code(0)
        .complains("warning: no report of the run: ");
}

#[test]
fn as_json_standard_output_is_the_rows_and_quietly_it_is_empty() {
    let place = Place::new();
    let run = place
        .run_nano(&["--json", "trainer.max_steps=3", "hydra.run.dir=a"])
        .with_code(0);
    let recorded = RunFolder(place.path().join("a")).read("metrics.jsonl");
    assert_eq!(run.stdout, recorded);
    assert!(run.stderr.contains("checkpoint  "), "{}", run.stderr);
    let run = place
        .run_nano(&[
            "--quiet",
            "trainer.max_steps=3",
            "trainer.lr_scheduler.num_warmup_steps=0",
            "hydra.run.dir=b",
        ])
        .with_code(0);
    assert_eq!((&*run.stdout, &*run.stderr), ("", ""));
    assert!(place.path().join("b/report.html").is_file());
}
