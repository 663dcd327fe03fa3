//! `logging=tensorboard`, read back by TensorBoard itself.
//!
//! The interpreter is `$TT_PYTHON`, else `python3`. Without the package the test says so and passes; with `CI` set it
//! fails.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Place, RunFolder};

/// Prints, as JSON, what TensorBoard has of the folder in the first argument.
const READ: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator, STORE_EVERYTHING_SIZE_GUIDANCE
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginEvents
from tensorboard.plugins.hparams import plugin_data_pb2
events = EventAccumulator(sys.argv[1], size_guidance=STORE_EVERYTHING_SIZE_GUIDANCE)
events.Reload()
scalars = {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()['scalars']}
# What the page is made of: the older reader takes back no texts.
pages = PluginEvents(sys.argv[1])
pages.Reload()
texts = {tag: [[e.step, e.tensor_proto.string_val[0].decode()] for e in pages.Tensors(tag)]
         for tag in pages.Tags()['tensors'] if tag.startswith('samples/')}
tensor_util = __import__('tensorboard.util.tensor_util', fromlist=['make_ndarray'])
# Of each bin its bounds and its count.
histograms = {tag: [[e.step, tensor_util.make_ndarray(e.tensor_proto).tolist()] for e in pages.Tensors(tag)]
              for tag in pages.Tags()['tensors'] if tag.startswith(('gradients/', 'parameters/'))}
images = {tag: [[e.step, *map(int, e.tensor_proto.string_val[:2])] for e in pages.Tensors(tag)]
          for tag in pages.Tags()['tensors'] if tag.startswith('plots/')}
metadata = events.SummaryMetadata('_hparams_/session_start_info')
data = plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content)
hparams = {key: value.number_value or value.string_value for key, value in data.session_start_info.hparams.items()}
print(json.dumps({'scalars': scalars, 'texts': texts, 'hparams': hparams, 'histograms': histograms, 'images': images,
                  'plugins': [metadata.plugin_data.plugin_name,
                              events.SummaryMetadata('config').plugin_data.plugin_name,
                              events.SummaryMetadata('loss').plugin_data.plugin_name]}))
";

fn read(run: &RunFolder) -> Option<Value> {
    let python = std::env::var_os("TT_PYTHON").unwrap_or_else(|| "python3".into());
    let output = Command::new(&python)
        .args(["-c", READ])
        .arg(run.join("tensorboard"))
        .output()
        .expect("python");
    let why = String::from_utf8_lossy(&output.stderr);
    if why.contains("No module named 'tensorboard'") && std::env::var_os("CI").is_none() {
        eprintln!("skipped: {python:?} has no tensorboard");
        return None;
    }
    assert!(output.status.success(), "{why}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

#[test]
fn tensorboard_reads_a_resumed_run_as_one_without_doubles() {
    let place = Place::new();
    let run = RunFolder(place.path().join("run"));
    let args = |steps| {
        [
            "logging=tensorboard",
            "trainer.checkpoint_interval=2",
            "trainer.eval_interval=2",
            "trainer.sample_interval=3",
            "trainer.sample.count=1",
            "logging.histogram_interval=3",
            "hydra.run.dir=run",
            steps,
        ]
    };
    place.run_nano(&args("trainer.max_steps=3")).with_code(0);
    // As after a kill behind the checkpoint of step 2: step 3 is made again.
    std::fs::remove_dir_all(run.join("checkpoints/step-00000003")).unwrap();
    std::fs::remove_file(run.join("summary.json")).unwrap();
    place.run_nano(&args("trainer.max_steps=6")).with_code(0);

    let Some(read) = read(&run) else {
        return;
    };
    let recorded = |key: &str| {
        let rows = run.rows();
        let rows = rows.iter().filter(|row| !row[key].is_null());
        rows.map(|row| {
            (
                row["step"].as_u64().unwrap(),
                row[key].as_f64().unwrap() as f32,
            )
        })
        .collect::<Vec<_>>()
    };
    for key in ["loss", "val_loss", "lr", "grad_norm", "tokens"] {
        let points = read["scalars"][key].as_array().expect(key).iter();
        let points = points.map(|point| {
            (
                point[0].as_u64().unwrap(),
                point[1].as_f64().unwrap() as f32,
            )
        });
        assert_eq!(points.collect::<Vec<_>>(), recorded(key), "{key}");
    }
    let samples = read["texts"]["samples/0"].as_array().expect("samples");
    let steps: Vec<_> = samples
        .iter()
        .map(|sample| sample[0].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [3, 6]);
    assert!(samples[0][1].as_str().unwrap().starts_with("**"));
    let of_steps = run.read("histograms.jsonl");
    let of_steps: Vec<Value> = of_steps
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect();
    assert_eq!(of_steps.len(), 2, "steps 3 and 6, once each");
    for (index, (of_step, (step, norm))) in of_steps
        .iter()
        .zip(recorded("grad_norm").into_iter().skip(2).step_by(3))
        .enumerate()
    {
        assert_eq!(of_step["step"], step);
        let mut squares = 0.0;
        for histogram in of_step["histograms"].as_array().expect("histograms") {
            let name = histogram["name"].as_str().expect("a name");
            if name.starts_with("gradients/") {
                squares += histogram["sum_squares"].as_f64().expect("a sum");
            }
            let shown = &read["histograms"][name][index];
            assert_eq!(shown[0], step, "{name}");
            let shown = shown[1].as_array().expect("bins").iter();
            let shown = shown.map(|bin| bin[2].as_f64());
            let counts = histogram["counts"].as_array().expect("counts").iter();
            assert!(shown.eq(counts.map(Value::as_f64)), "{name}");
        }
        // They are the gradients of the mean loss, before clipping.
        let error = (squares.sqrt() as f32 - norm).abs();
        assert!(error <= 1e-5 * norm, "{} and {norm}", squares.sqrt());
    }
    let plot = &read["images"]["plots/loss"];
    // At the end of each process; the second one begins with step 3.
    assert_eq!(plot.as_array().map(Vec::len), Some(1));
    assert_eq!(plot[0][0], 6);
    assert!(plot[0][1].as_u64() > Some(100), "{plot}");
    assert_eq!(read["hparams"]["trainer.optimizer.type"], "adamw.AdamW");
    assert_eq!(read["hparams"]["trainer.max_steps"], 3.0);
    assert_eq!(
        read["plugins"],
        serde_json::json!(["hparams", "text", "scalars"])
    );
}
