//! `tpu-train plan`: what it says of a run is what the run then takes.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Place, RunFolder};

/// Runs whose tensors outweigh the rest of the process: as it comes; wide; long rows; such that remat spares; adapted.
const RUNS: &[&[&str]] = &[
    &[],
    &[
        "model.hidden_size=768",
        "model.intermediate_size=2048",
        "data.sequence_length=64",
    ],
    &["data.sequence_length=512"],
    &[
        "data.sequence_length=512",
        "model.num_hidden_layers=6",
        "model/remat=full",
    ],
    &[
        "model.hidden_size=1024",
        "model.intermediate_size=4096",
        "data.sequence_length=64",
        "model/adapter=lora",
    ],
];

fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let run = [
        "+model=qwen2",
        "+trainer=lm",
        "trainer.max_steps=1",
        "trainer.sample.count=1",
    ];
    run.iter().chain(more).copied().collect()
}

#[track_caller]
fn plan(place: &Place, args: &[&str]) -> Value {
    let args = [&["plan", "--json"], args].concat();
    let finished = place.run(&args).with_code(0);
    assert_eq!(finished.stderr, "", "{args:?}");
    serde_json::from_str(&finished.stdout).expect("JSON")
}

#[test]
fn the_predicted_peak_is_within_15_percent_of_the_measured_one() {
    let place = Place::new();
    for (i, more) in RUNS.iter().enumerate() {
        let dir = format!("hydra.run.dir=run{i}");
        let args = [small(more), vec![&dir]].concat();
        let predicted = plan(&place, &args)["memory_bytes"]["peak"]
            .as_f64()
            .unwrap();
        place.run(&args).with_code(0);
        let summary = RunFolder(place.path().join(format!("run{i}"))).json("summary.json");
        let measured = summary["peak_rss_bytes"]
            .as_f64()
            .expect("a system that tells");
        let ratio = predicted / measured;
        println!("{more:?}: predicted {predicted}, measured {measured}: {ratio:.3}");
        assert!(
            (0.85..=1.15).contains(&ratio),
            "{more:?}: {predicted} for {measured}"
        );
    }
}

#[test]
fn a_plan_is_the_same_every_time_and_leaves_nothing_behind() {
    let place = Place::new();
    let first = plan(&place, &small(&[]));
    assert_eq!(plan(&place, &small(&[])), first);
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn flops_are_those_of_the_products() {
    let place = Place::new();
    let more = [
        "model/size=nano",
        "data.sequence_length=32",
        "trainer.global_batch_size=12",
    ];
    let plan = plan(&place, &small(&more));
    let show = ["--cfg=job", "--resolve", "--package=model"];
    let config = place
        .run(&[&small(&more)[..], &show].concat())
        .with_code(0)
        .stdout;
    let size = |key: &str| -> u64 {
        let line = config
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{key}: ")));
        line.expect(key).parse().expect("a number")
    };
    let (hidden, layers) = (size("hidden_size"), size("num_hidden_layers"));
    let head_dim = hidden / size("num_attention_heads");
    let kv = size("num_key_value_heads") * head_dim;
    let of_layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * size("intermediate_size");
    let weights = layers * of_layer + size("vocab_size") * hidden;
    // Each weight meets each token in one product forward and two backward; a query sees itself and what is before it,
    // in two products forward and five backward.
    let (rows, length) = (12, 32);
    let scores = length * (length + 1) / 2 * rows * hidden * layers;
    let expected = 6 * weights * rows * length + 14 * scores;
    assert_eq!(plan["step"]["flops"].as_u64(), Some(expected));
}

#[test]
fn settings_that_make_a_run_fit_are_found() {
    let place = Place::new();
    let rows = [
        "trainer.global_batch_size=32",
        "trainer.micro_batch_size=32",
    ];
    let args = [&small(&rows)[..], &["--memory=400MB"]].concat();
    let fit = plan(&place, &args)["fit"].clone();
    assert_eq!(
        (&fit["fits"], &fit["would_fit"]),
        (&false.into(), &true.into()),
        "{fit}"
    );
    let overrides = fit["overrides"].as_array().unwrap();
    let overrides: Vec<&str> = overrides
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect();
    let changed = plan(&place, &[&args[..], &overrides].concat());
    assert_eq!(changed["fit"]["fits"], true);
    assert_eq!(changed["memory_bytes"]["peak"], fit["peak_bytes"]);

    place
        .run(&[&["plan"], &small(&rows)[..], &["--memory=1MB"]].concat())
        .with_code(0)
        .prints("does not fit 1.00 MB; the least of what was tried is");
}

#[test]
fn remat_is_shown_with_what_it_saves() {
    let place = Place::new();
    let plan = plan(&place, &small(&["model/remat=full"]));
    let memory = &plan["memory_bytes"];
    let with = memory["activations"].as_u64().unwrap();
    let without = memory["activations_without_remat"].as_u64().unwrap();
    assert!(2 * with < without, "{with} of {without}");
}

/// The options of a group under `configs/`.
fn options(group: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("configs")
        .join(group);
    let files = std::fs::read_dir(folder)
        .expect("a group")
        .map(|file| file.unwrap().path());
    let options = files.filter(|path| path.extension().is_some_and(|it| it == "yaml"));
    options
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_option_of_the_models_plans_in_seconds() {
    let place = Place::new();
    for model in options("model") {
        let model = format!("model={model}");
        // More memory than any of them needs, so that nothing is searched for.
        let trainer = match model.contains("bert") {
            true => "trainer=masked_lm",
            false => "trainer=lm",
        };
        let plan = plan(&place, &[&model, trainer, "--memory=100TB"]);
        assert_eq!(plan["fit"]["fits"], true, "{model}");
        assert!(plan["step"]["flops"].as_u64() > Some(0), "{model}");
    }
}

#[test]
fn data_that_is_not_there_is_refused() {
    let place = Place::new();
    let text = ["plan", "+model=qwen2", "+trainer=lm", "data=text"];
    place
        .run(&[&text[..], &["data.path=absent.txt"]].concat())
        .with_code(2)
        .complains("`data.path`: no such file: absent.txt");
}

#[test]
fn the_steps_of_epochs_are_counted_in_the_data() {
    let place = Place::new();
    let text: String = (0..80)
        .map(|i| format!("On day {i} the cat found {} mice.\n\n", i * 7 % 31))
        .collect();
    place.write("text.txt", &text);
    let nano = crate::harness::nano(&[
        "data=text",
        "data.path=text.txt",
        "data.tokenizer.vocab_size=300",
        "trainer.sample.count=0",
        "trainer.num_epochs=2",
    ]);
    let planned = plan(&place, &nano)["run"]["steps"].as_u64().unwrap();
    let at_most = plan(&place, &[&nano[..], &["trainer.max_steps=3"]].concat());
    assert_eq!(at_most["run"]["steps"], 3);
    let args = [&nano[..], &["hydra.run.dir=run"]].concat();
    place.run(&args).with_code(0);
    let summary = RunFolder(place.path().join("run")).json("summary.json");
    assert_eq!(summary["steps"].as_u64(), Some(planned));
}

/// A mesh of 8 hosts of 8, on hardware with round numbers.
fn time(place: &Place, more: &[&str]) -> Value {
    let hardware = [
        "ici_mesh.fsdp=8",
        "trainer.micro_batch_size=1",
        "data.sequence_length=64",
        "device.peak_tflops=2",
        "device.utilization=0.5",
        "dist.ici_gb_per_second=1",
        "dist.dcn_gb_per_second=0.5",
    ];
    plan(place, &small(&[&hardware, more].concat()))
}

#[test]
fn the_time_of_a_step_is_computing_and_what_ranks_exchange() {
    let place = Place::new();
    let seconds = |plan: &Value, what: &str| plan["time"][what].as_f64().expect(what);
    let alone = plan(
        &place,
        &small(&["device.peak_tflops=2", "device.utilization=0.5"]),
    );
    let flops = alone["step"]["flops"].as_f64().unwrap();
    assert!((seconds(&alone, "step_seconds") - flops / 1e12).abs() < 1e-9);
    assert_eq!(seconds(&alone, "efficiency"), 1.0);

    // All that is gathered and summed stays in a host; parts are equal, so what a rank hears is what it says.
    let zero3 = ["model/sharding=zero3", "trainer.global_batch_size=8"];
    let host = time(&place, &zero3);
    let heard = ["gathered_bytes", "reduced_bytes"].map(|key| host["ranks"][key].as_f64().unwrap());
    let within = seconds(&host, "within_host_seconds");
    let expected = heard.iter().sum::<f64>() / 1e9;
    assert!(
        (within / expected - 1.0).abs() < 1e-3,
        "{within} {expected}"
    );
    assert_eq!(seconds(&host, "between_hosts_seconds"), 0.0);
    let step = seconds(&host, "step_seconds");
    let compute = seconds(&host, "compute_seconds");
    assert!((step - compute - within).abs() < 1e-9);
    assert!((seconds(&host, "efficiency") - compute / step).abs() < 1e-9);

    // Copies on other hosts: only sums go there, of a rank's part 2 * 7/8 of it.
    let rows = "trainer.global_batch_size=64";
    let hosts = ["dcn_mesh.data=8", "model/sharding=zero3", rows];
    let copies = time(&place, &hosts);
    let parameters = copies["parameters"]["total"].as_f64().unwrap();
    let expected = 2.0 * 7.0 / 8.0 * 4.0 * parameters / 8.0 / 0.5e9;
    let between = seconds(&copies, "between_hosts_seconds");
    // Sums of few numbers are one exchange of whole parts.
    assert!(
        (0.99..1.1).contains(&(between / expected)),
        "{between} {expected}"
    );

    // A message costs its latency: at least one to each of the 56 on other hosts for every sum.
    let slow = time(&place, &[&hosts[..], &["dist.dcn_latency_us=100"]].concat());
    let added = seconds(&slow, "between_hosts_seconds") - between;
    assert!(added > 56.0 * 100e-6, "{added}");

    // What is gathered ahead is hidden as far as there is something computed meanwhile.
    let ahead = time(
        &place,
        &[&hosts[..], &["model.sharding.prefetch=true"]].concat(),
    );
    let hidden = seconds(&ahead, "hidden_seconds");
    assert!(hidden > 0.0 && hidden <= seconds(&ahead, "compute_seconds"));
    assert_eq!(
        seconds(&ahead, "within_host_seconds"),
        seconds(&copies, "within_host_seconds")
    );
    assert_eq!(seconds(&copies, "hidden_seconds"), 0.0);
}

#[test]
fn a_time_that_cannot_be_told_names_what_is_missing() {
    let place = Place::new();
    let args = small(&["ici_mesh.fsdp=2", "dcn_mesh.data=2", "device.peak_tflops=1"]);
    let plan = |more: &[&str]| place.run(&[&["plan"], &args[..], more].concat());
    plan(&[])
        .with_code(0)
        .prints("with dist.ici_gb_per_second, it can be told");
    plan(&["dist.ici_gb_per_second=1"])
        .with_code(0)
        .prints("with dist.dcn_gb_per_second, it can be told");
    for (wrong, why) in [
        ("dist.ici_gb_per_second=0", "dist.ici_gb_per_second`: 0"),
        ("device.utilization=0", "device.utilization`: 0"),
        (
            "device.utilization=40",
            "`device.utilization` must be at most 1",
        ),
    ] {
        plan(&[wrong]).with_code(2).complains(why);
    }
}

#[test]
fn ranks_on_tpus_have_a_chip_each_and_not_one_process() {
    let place = Place::new();
    let args = ["device=tpu", "device.ranks=4", "model/sharding=zero3"];
    let told = place.run(&[&["plan"], &small(&args)[..]].concat());
    let told = told.with_code(0).prints("each rank fits 4.29 GB");
    assert!(!told.stdout.contains("in one process"), "{}", told.stdout);
}

#[test]
fn launches_are_not_both_collected_and_waited_for() {
    let place = Place::new();
    let args = ["device=tpu", "device.mode=batch", "device.sync=true"];
    let told = place.run(&[&["plan"], &small(&args)[..]].concat());
    told.with_code(2).complains("it goes with eager");
}

#[test]
fn the_vendors_kernels_are_not_taken_on_a_bm1684x() {
    let place = Place::new();
    let args = ["device=tpu", "device.kernels=vendor"];
    let told = place.run(&[&["plan"], &small(&args)[..]].concat());
    told.with_code(0);
    let args = [&args[..], &["device.chip=bm1684x"]].concat();
    let told = place.run(&[&["plan"], &small(&args)[..]].concat());
    told.with_code(2)
        .complains("`device.kernels`: none of the vendor's is admitted on a bm1684x");
}

/// Parts of others than the rehearsed rank are not made: it took minutes, and as much memory as the model.
#[test]
fn a_plan_of_very_many_ranks_takes_seconds() {
    let place = Place::new();
    let args = [
        "+model=qwen2-7b",
        "+trainer=lm",
        "dcn_mesh.fsdp=8192",
        "ici_mesh.fsdp=8",
        "model/sharding=zero3",
        "trainer.global_batch_size=65536",
        "trainer.micro_batch_size=1",
    ];
    let begun = std::time::Instant::now();
    let plan = plan(&place, &args);
    let seconds = begun.elapsed().as_secs_f64();
    assert!(seconds < 10.0, "{seconds}");
    // 3584 columns of one of 65536 rows at most, of each of 28 layers' seven matrices and of the embedding and the head.
    let weights = plan["memory_bytes"]["weights"].as_f64().unwrap();
    assert!(weights >= 7.6e9 / 65536.0 * 4.0, "{weights}");
}
