//! Where the time of a step goes, and how much of the device it uses.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Finished, NANO, Place, RunFolder, Running, TpuPlace, entries};

/// Batches that are made in no time, so that the parts of a step are what it takes.
const SMALL: &[&str] = &[
    "trainer.global_batch_size=4",
    "trainer.micro_batch_size=2",
    "data.sequence_length=64",
    "data.num_val_blocks=2",
    "trainer.log_interval=1",
];

/// A span of the trace, in microseconds.
#[derive(Debug)]
struct Span {
    name: String,
    kind: String,
    start: f64,
    end: f64,
}

/// Of the only trace of a run, whose summary is beside it, and that summary.
fn trace(run: &Path, name: &str) -> (Value, String) {
    let [trace, summary] = &entries(&run.join("profile"))[..] else {
        panic!("one trace");
    };
    assert!(trace.ends_with(format!("{name}.json")), "{trace:?}");
    assert!(summary.ends_with(format!("{name}.txt")), "{summary:?}");
    let trace = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    (trace, std::fs::read_to_string(summary).unwrap())
}

fn events<'a>(trace: &'a Value, phase: &str) -> Vec<&'a Value> {
    let events = trace["traceEvents"].as_array().expect("events");
    events.iter().filter(|it| it["ph"] == phase).collect()
}

fn spans(trace: &Value) -> Vec<Span> {
    let events = events(trace, "X");
    let on_one_thread = events.iter().all(|it| it["tid"] == events[0]["tid"]);
    assert!(on_one_thread, "the loop launches all kernels");
    let spans = events.iter().map(|event| {
        let start = event["ts"].as_f64().expect("a time");
        let text = |key: &str| event[key].as_str().expect("a name").to_owned();
        Span {
            name: text("name"),
            kind: text("cat"),
            start,
            end: start + event["dur"].as_f64().expect("a length"),
        }
    });
    let mut spans: Vec<Span> = spans.collect();
    // What begins first, and of those the longest, is around the others.
    spans.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)));
    spans
}

/// Spans lie within one another or apart, the parts of a step are the step, and tracing changes no number.
#[test]
fn a_trace_shows_where_the_time_of_a_step_goes() {
    let place = Place::new();
    let run = |dir: &str, more: &[&str]| {
        let dir = format!("hydra.run.dir={dir}");
        let args = [
            SMALL,
            &["trainer.max_steps=4", &dir, "model/remat=alternate"],
            more,
        ]
        .concat();
        place.run_nano(&args).with_code(0)
    };
    run("plain", &[]);
    run(
        "traced",
        &[
            "profile=chrome",
            "profile.first_step=2",
            "profile.num_steps=2",
        ],
    )
    .prints("trace written to ");
    let rows = |dir: &str| crate::harness::RunFolder(place.path().join(dir)).timeless_rows();
    assert_eq!(rows("traced"), rows("plain"));
    assert!(!place.path().join("plain/profile").exists());

    let (trace, summary) = trace(&place.path().join("traced"), "steps-00000002-00000003");
    for told in ["a step: ", "of 2 traced", "fused::attention", "backward"] {
        assert!(summary.contains(told), "{summary}");
    }
    let spans = spans(&trace);
    let mut around: Vec<&Span> = Vec::new();
    for span in &spans {
        while around.last().is_some_and(|it| it.end <= span.start) {
            around.pop();
        }
        let outer = around.last();
        assert!(
            outer.is_none_or(|it| span.end <= it.end + 1e-3),
            "{span:?} in {outer:?}"
        );
        around.push(span);
    }
    let steps: Vec<&Span> = spans.iter().filter(|it| it.kind == "step").collect();
    let names: Vec<&str> = steps.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["step 2", "step 3"]);
    for step in steps {
        let within = |it: &&Span| step.start <= it.start && it.end <= step.end;
        let parts: Vec<&Span> = spans
            .iter()
            .filter(within)
            .filter(|it| it.kind == "part")
            .collect();
        let count = |name: &str| parts.iter().filter(|it| it.name == name).count();
        let counts = ["data", "forward", "backward", "judge", "optimizer"].map(count);
        assert_eq!(counts, [1, 2, 2, 1, 1]);
        let sum: f64 = parts.iter().map(|it| it.end - it.start).sum();
        let whole = step.end - step.start;
        assert!((0.8..=1.0).contains(&(sum / whole)), "{sum} of {whole}");
        for (part, kind, name) in [
            ("forward", "module", "layers.0.mlp"),
            ("forward", "kernel", "fused::attention"),
            ("backward", "module backward", "layers.1"),
            ("backward", "gradient", "linear"),
            ("backward", "kernel", "fused::attention"),
            ("optimizer", "kernel", "fused::step"),
        ] {
            let part = parts.iter().find(|it| it.name == part).expect("a part");
            let is_there = spans.iter().any(|it| {
                (part.start..part.end).contains(&it.start)
                    && it.kind == kind
                    && it.name.contains(name)
            });
            assert!(is_there, "{kind} {name} in {part:?}");
        }
    }
}

/// Bytes in a row of the summary, the most of them.
fn told(summary: &str, name: &str) -> u64 {
    let line = summary.lines().find(|line| line.trim().starts_with(name));
    let line = line.unwrap_or_else(|| panic!("{name} in\n{summary}"));
    let number = line.split_whitespace().next_back().expect("a number");
    number.parse().expect("bytes")
}

/// In batches or not, launches are told one by one, each with what asked for it; the memory is that of `plan`, by owner.
#[test]
fn a_trace_of_a_tpu_tells_each_launch_and_whose_the_memory_is() {
    let Some(lab) = TpuPlace::open() else { return };
    let run = [
        "data.sequence_length=16",
        "data.num_val_blocks=1",
        "trainer.global_batch_size=2",
        "trainer.micro_batch_size=2",
        "trainer.max_steps=3",
        "trainer.eval_interval=null",
        "trainer.sample.count=0",
    ];
    let tpu = ["device=tpu", "device.cores=2", "device.mode=batch"];
    let traced = [
        "profile=chrome",
        "profile.first_step=2",
        "profile.num_steps=1",
    ];
    let train = |dir: &str, more: &[&str]| {
        let dir = format!("hydra.run.dir={dir}");
        let args = [NANO, &run, &tpu, more, &[&dir]].concat();
        Running::start(lab.command(&args)).finish().with_code(0)
    };
    let plain = train("plain", &[]);
    let finished = train("traced", &traced).prints(" launches that read ");
    let rows = |dir: &str| RunFolder(lab.place.path().join(dir)).timeless_rows();
    assert_eq!(rows("traced"), rows("plain"));
    // Kernels, and what they were launched with: one by one in one step of three.
    let numbers = |said: &Finished| crate::tpu::kernels_and_launches(said);
    let ((kernels, few), (same, more)) = (numbers(&plain), numbers(&finished));
    assert_eq!(kernels, same);

    let (trace, summary) = trace(&lab.place.path().join("traced"), "steps-00000002-00000002");
    let launches: Vec<&Value> = events(&trace, "X")
        .into_iter()
        .filter(|it| it["cat"] == "launch")
        .collect();
    let count = launches.len() as u64;
    assert!(
        few < count && count < more && more <= count + few,
        "{few} {count} {more}"
    );
    assert!(
        summary.contains(&format!(", {count} launches that read ")),
        "{summary}"
    );
    assert!(
        trace["otherData"]["times"].is_string(),
        "how they are taken"
    );
    let spans = spans(&trace);
    let step = spans.iter().find(|it| it.kind == "step").expect("a step");
    let mut sequence = 0;
    for launch in &launches {
        let args = &launch["args"];
        assert!(
            args["operands"].is_object() && args["operation"].is_string(),
            "{launch}"
        );
        assert!(args["written_bytes"].as_u64() > Some(0), "{launch}");
        assert!(args["sequence"].as_u64() > Some(sequence), "{launch}");
        sequence = args["sequence"].as_u64().unwrap();
        let start = launch["ts"].as_f64().unwrap();
        assert!((step.start..step.end).contains(&start), "{launch}");
    }
    let projection = "model.layers.0.self_attn.q_proj";
    for (kernel, direction, module, operation) in [
        ("matmul", "forward", Some(projection), Some("fused::linear")),
        (
            "attention",
            "forward",
            Some("model.layers.1.self_attn"),
            None,
        ),
        ("attention_dkv", "backward", None, Some("fused::attention")),
        ("optimizer_step", "optimizer", None, Some("fused::step")),
    ] {
        let is_it = |it: &&&Value| {
            let args = &it["args"];
            it["name"] == kernel
                && args["direction"] == direction
                && module.is_none_or(|module| args["module"] == module)
                && operation.is_none_or(|operation| args["operation"] == operation)
        };
        assert!(launches.iter().any(|it| is_it(&it)), "{kernel} {direction}");
    }
    let copies = |name: &str| {
        let copies = events(&trace, "X").into_iter();
        let copies = copies.filter(|it| it["cat"] == "copy" && it["name"] == name);
        copies
            .filter(|it| it["args"]["bytes"].as_u64() > Some(0))
            .count()
    };
    assert!(
        copies("upload") >= 2 && copies("download") >= 1,
        "{summary}"
    );
    assert!(events(&trace, "C").len() > 20, "memory over time");

    // `plan` counts 8 bytes for an index, of which the device has 4.
    let args = [&["plan", "--json"], NANO, &run, &tpu[..1]].concat();
    let plan = Running::start(lab.command(&args)).finish().with_code(0);
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    let planned = |key: &str| plan["memory_bytes"][key].as_u64().expect("bytes");
    assert_eq!(told(&summary, "weights"), planned("weights"));
    assert_eq!(told(&summary, "gradients"), planned("gradients"));
    assert_eq!(told(&summary, "optimizer state"), planned("optimizer"));
    let kept = told(&summary, "kept for backward");
    let activations = planned("activations");
    let indices = 2 * 16 * 4 * 2; // ids and labels
    // What the first step makes for all (the angles of positions) is there before the second.
    let buffers = told(&summary, "buffers");
    assert!(
        kept <= activations && activations <= kept + indices + buffers,
        "{kept} {activations}"
    );
}

/// What is counted is what the shapes of the model say, attention with the half that it looks at; a step that takes as long
/// is as much of the peak.
#[test]
fn utilization_is_of_the_operations_that_the_model_has() {
    let place = Place::new();
    let run = |peak: &str| {
        let peak = format!("device.peak_tflops={peak}");
        let args = [
            SMALL,
            &["trainer.max_steps=2", "resume=none", &peak],
            &["model/remat=full"],
        ];
        place.run_nano(&args.concat())
    };
    let said = run("0.5").with_code(0).stdout;
    assert!(
        said.contains(" mfu=") && said.contains(" tflops="),
        "{said}"
    );
    let folder = place.run_folder();
    let config: Value = serde_json::from_slice(
        &std::fs::read(folder.final_checkpoint().join("config.json")).unwrap(),
    )
    .unwrap();
    let of = |key: &str| config[key].as_f64().expect("a size");
    let (hidden, heads) = (of("hidden_size"), of("num_attention_heads"));
    let width = config["head_dim"].as_f64().unwrap_or(hidden / heads);
    let of_heads = 2.0 * heads + 2.0 * of("num_key_value_heads");
    let layer = hidden * width * of_heads + 3.0 * hidden * of("intermediate_size");
    let (layers, tokens, length) = (of("num_hidden_layers"), 4.0 * 64.0, 64.0);
    let products = 2.0 * tokens * (layers * layer + hidden * of("vocab_size"));
    let seen = tokens * (length + 1.0) / 2.0;
    let attention = 2.0 * layers * heads * width * seen; // of one of its two products
    let expected = 3.0 * products + 6.0 * attention;
    for row in folder.rows().iter().filter(|row| row["mfu"].is_number()) {
        let number = |key: &str| row[key].as_f64().expect("a number");
        let flops = number("tflops") * 1e9 * number("step_time_ms");
        // A time is written in whole microseconds.
        let rounding = 0.5e-3 / number("step_time_ms") + 1e-6;
        let off = (flops / expected - 1.0).abs();
        assert!(off < rounding, "{flops} {expected}");
        let mfu = number("tflops") / 0.5;
        assert!((number("mfu") / mfu - 1.0).abs() < 1e-4, "{row}");
    }
    run("auto").with_code(0).prints("peak of the device: ");
    run("0").with_code(2).complains("`device.peak_tflops`");
}
