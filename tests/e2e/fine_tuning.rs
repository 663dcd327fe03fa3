//! `docs/fine-tuning.md`, as it is written: from records to a merged checkpoint that chats.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Place, RunFolder};

/// Questions with their answers.
const RECORDS: &str = r#"{"instruction": "Who are you?", "output": "I am the miller."}
{"messages": [{"role": "user", "content": "Where is the grain?"}, {"role": "assistant", "content": "On the hill."}]}
{"conversations": [{"from": "human", "value": "How many carts?"}, {"from": "gpt", "value": "Seven."}]}
"#;

/// What the base has read: an adapter cannot teach it tokens that it has never seen.
const TEXT: &str = "The mill is old.

I am old. I am the miller.

Who are you?

Where is the grain? On the hill.

How many carts? Seven.

<|im_start|>user
Hello!<|im_end|>
<|im_start|>assistant
Hi.<|im_end|>";

fn tokenizer() -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sft/tokenizer.json");
    golden.to_str().expect("a path").to_owned()
}

/// A place with the records, and a small model with the tokenizer of the goldens where the page has a large one.
fn place() -> Place {
    let place = Place::new();
    place.write("records/records.jsonl", RECORDS);
    place.write("text.txt", TEXT);
    let tokenizer = format!("data.tokenizer.path={}", tokenizer());
    place
        .run_nano(&[
            "data=text",
            "data.path=text.txt",
            "data.dataset.kwargs.separator=blank_line",
            &tokenizer,
            "data.val_path=text.txt",
            "trainer.max_steps=60",
            "lr=1e-2",
            "hydra.run.dir=start",
        ])
        .with_code(0);
    place
        .run(&["export", "checkpoint=start", "out=Qwen2-0.5B"])
        .with_code(0);
    place
}

/// The commands in the first block of the page, in words.
fn commands() -> Vec<Vec<String>> {
    let page = include_str!("../../docs/fine-tuning.md").replace("\\\n", " ");
    let block = page.split("```").nth(1).expect("a block of commands");
    let commands = block
        .lines()
        .filter_map(|line| line.strip_prefix("tpu-train "));
    commands
        .map(|command| {
            // No word but the last has blanks.
            let (words, quoted) = command.split_once(" '").unwrap_or((command, ""));
            let words = words.split_whitespace().map(str::to_owned);
            let quoted = quoted.strip_suffix('\'').map(str::to_owned);
            words.chain(quoted).collect()
        })
        .collect()
}

/// What makes a small model learn the records by heart.
const SMALL: &[&str] = &[
    "model/size=nano",
    "data.sequence_length=64",
    "data.val_path=records",
    "trainer.global_batch_size=3",
    "trainer.micro_batch_size=3",
    "trainer.num_epochs=150",
    "trainer.eval_interval=1000",
    "trainer.checkpoint_interval=1000",
];

fn run(place: &Place, command: &[String]) -> crate::harness::Finished {
    let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
    if words.contains(&"+trainer=lm") {
        for word in &mut words {
            *word = match *word {
                "+model=qwen2-0.5b" => "+model=qwen2",
                "lr=1e-5" | "lr=2e-4" => "lr=1e-2",
                word => word,
            };
        }
        words.retain(|word| !word.starts_with("trainer.num_epochs="));
        words.extend(SMALL);
    }
    place.run(&words).with_code(0)
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

#[test]
fn the_page_goes_from_records_to_a_merged_checkpoint_that_chats() {
    let place = place();
    let commands = commands();
    assert_eq!(commands.len(), 5);
    let (chat, before) = commands.split_last().unwrap();
    for command in before {
        run(&place, command);
    }
    let answer = |model: &str, question: &str| {
        let words = chat.iter().map(|word| word.replace("lora-model", model));
        let words = words.map(|word| word.replace("Who are you?", question));
        run(&place, &words.collect::<Vec<_>>()).stdout
    };
    for (question, expected) in [
        ("Who are you?", "I am the miller.\n"),
        ("How many carts?", "Seven.\n"),
    ] {
        assert_eq!(answer("lora-model", question), expected);
        assert_eq!(answer("full-model", question), expected);
        assert_ne!(answer("Qwen2-0.5B", question), expected);
    }
    // Whatever loads it stops where an answer ends.
    let ends = read_json(&place.path().join("full-model/generation_config.json"));
    assert!(
        ends["eos_token_id"] == 4
            || ends["eos_token_id"]
                .as_array()
                .is_some_and(|it| it.contains(&4.into())),
        "{ends}"
    );
}

#[test]
fn a_run_on_conversations_goes_on_as_if_never_interrupted() {
    let place = place();
    let args = |dir: &str, steps: u32| {
        let words = [
            "+model=qwen2",
            "model/size=nano",
            "+trainer=lm",
            "data=sft",
            "data.path=records",
            "data.val_path=records",
            "model.pretrained_url=Qwen2-0.5B",
            "data.sequence_length=64",
            "data.collator.kwargs.packing=true",
            "data.collator.kwargs.template=qwen2",
            "+data.collator.kwargs.packing_window=2",
            "trainer.global_batch_size=2",
            "trainer.micro_batch_size=1",
        ];
        let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        words.extend([
            format!("hydra.run.dir={dir}"),
            format!("trainer.max_steps={steps}"),
        ]);
        words
    };
    let run = |words: Vec<String>| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        place.run(&words).with_code(0);
    };
    run(args("whole", 9));
    run(args("parts", 4));
    run(args("parts", 9));
    let weights = |dir: &str| {
        let run = RunFolder(place.path().join(dir));
        std::fs::read(run.final_checkpoint().join("model.safetensors")).expect("weights")
    };
    assert!(weights("whole") == weights("parts"));
    // A named template is what the checkpoint is asked by.
    let checkpoint = RunFolder(place.path().join("whole")).final_checkpoint();
    let template =
        std::fs::read_to_string(checkpoint.join("chat_template.jinja")).expect("a template");
    assert!(
        template.contains("You are a helpful assistant."),
        "{template}"
    );
    assert!(!template.contains("generation %}"), "{template}");
}

#[test]
fn what_is_cut_and_left_out_is_said() {
    let place = place();
    let finished = place.run(&[
        "+model=qwen2",
        "model/size=nano",
        "+trainer=lm",
        "data=sft",
        "data.path=records",
        "data.val_path=records",
        "model.pretrained_url=Qwen2-0.5B",
        "data.sequence_length=17",
        "trainer.max_steps=2",
        "trainer.global_batch_size=3",
        "trainer.micro_batch_size=3",
    ]);
    let finished = finished.with_code(0);
    let said = finished.stdout + &finished.stderr;
    assert!(
        said.contains("to fit into data.sequence_length=17"),
        "{said}"
    );
}

/// With this seed the row that fits lies between the two that do not.
#[test]
fn what_is_left_out_after_the_last_batch_is_said_too() {
    let place = Place::new();
    let record = |text: &str| format!(r#"{{"instruction": "{text}", "output": "{text}"}}"#);
    let [short, long] = [record("Who?"), record(&"mill ".repeat(60))];
    place.write("short.jsonl", &[&*short, &*short].join("\n"));
    place.write("mixed.jsonl", &[&*short, &*long, &*long].join("\n"));
    let run = |more: &[&str]| {
        let finished = place.run(
            &[
                &[
                    "+model=qwen2",
                    "model/size=nano",
                    "+trainer=lm",
                    "trainer/lr_scheduler=constant",
                    "data=sft",
                    "data.path=mixed.jsonl",
                    "data.val_path=short.jsonl",
                    &format!("data.tokenizer.path={}", tokenizer()),
                    "data.sequence_length=32",
                    "+data.collator.kwargs.on_too_long=skip",
                    "+trainer.num_epochs=1",
                    "trainer.global_batch_size=1",
                    "trainer.micro_batch_size=1",
                    "seed=2",
                ],
                more,
            ]
            .concat(),
        );
        let finished = finished.with_code(0);
        finished.stdout + &finished.stderr
    };
    // Also where the run ends with its steps, which are those of the data.
    for more in [&[][..], &["trainer.max_steps=1", "resume=none"]] {
        let said = run(more);
        assert!(said.contains("so far 2 rows of data left out"), "{said}");
        assert!(!said.contains("cut by"), "nothing was: {said}");
        assert!(!said.contains("came before the end"), "{said}");
        // A conversation has more tokens than its texts.
        assert!(said.contains("of about 290 tokens to train on"), "{said}");
    }
}

#[test]
fn a_sequence_to_sequence_run_learns_its_outputs() {
    let place = place();
    place.write(
        "pairs/a.jsonl",
        "{\"q\": \"One?\", \"a\": \"Uno.\"}\n{\"q\": \"Two?\", \"a\": \"Due.\"}\n",
    );
    place
        .run(&[
            "+model=qwen2",
            "model/size=nano",
            "+trainer=seq_to_seq_lm",
            "data=sft",
            "data.path=pairs",
            "data.val_path=pairs",
            "model.pretrained_url=Qwen2-0.5B",
            "data.sequence_length=32",
            "data.collator.type=seq_to_seq.SeqToSeqCollator",
            "~data.collator.kwargs.format",
            "~data.collator.kwargs.template",
            "~data.collator.kwargs.train_on",
            "+data.collator.kwargs.input_field=q",
            "+data.collator.kwargs.output_field=a",
            "trainer.max_steps=2",
            "trainer.global_batch_size=2",
            "trainer.micro_batch_size=2",
        ])
        .with_code(0);
}
