//! Pairs, as people keep them: what the prompt is, what is trained on, and what becomes of pairs that do not fit.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tt_collators::{
    Batch, BatchShape, Collator, IGNORE, LeftOut, Loader, PreferenceCollator, PreferenceConfig,
    RowKey,
};
use tt_data::{Cursor, DataError, Location, Order, Row, Shard, Source, Tokenizer};

pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let root = std::env::var_os("TT_GOLDEN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden"),
        Into::into,
    );
    Arc::new(Tokenizer::load(&root.join("sft/tokenizer.json"), None).unwrap())
}

pub(crate) fn collator(config: Value) -> Arc<PreferenceCollator> {
    let config: PreferenceConfig = serde_json::from_value(config).unwrap();
    Arc::new(PreferenceCollator::new(config, tokenizer()).unwrap())
}

struct Rows(Vec<Row>);

impl Source for Rows {
    fn num_rows(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        row.clone_from(&self.0[index as usize]);
        Ok(())
    }
}

fn row(record: &Value) -> Row {
    Row {
        fields: serde_json::from_value(record.clone()).unwrap(),
        at: Location::Line {
            file: Path::new("pairs.jsonl").into(),
            line: 3,
        },
    }
}

/// The only batch of `records`, and what was left out of them.
pub(crate) fn batch(
    collator: &Arc<PreferenceCollator>,
    records: &[Value],
    seq_len: usize,
) -> Result<(Option<Batch>, LeftOut), DataError> {
    let source = Rows(records.iter().map(row).collect());
    let order = Order::new(0, Shard::default(), source.num_rows())?;
    let shape = BatchShape {
        rows: records.len(),
        seq_len,
        pad_id: 0,
        vocab_size: tokenizer().vocab_size(),
    };
    let mut loader = Loader::new(
        Arc::new(source),
        order,
        collator.clone(),
        shape,
        Cursor::default(),
        Some(1),
        1,
    )?;
    let batch = match loader.next_batch() {
        Err(DataError::NoTokens { rows, .. }) => {
            let left_out = LeftOut {
                rows,
                ..LeftOut::default()
            };
            return Ok((None, left_out));
        }
        batch => batch?,
    };
    let left_out = batch
        .as_ref()
        .map_or_else(|| loader.take_left_out(), |it| it.left_out);
    Ok((batch, left_out))
}

/// Of each row of a record: all of its text, and what is trained on of it.
pub(crate) fn texts(
    collator: &Arc<PreferenceCollator>,
    record: &Value,
    seq_len: usize,
) -> [[String; 2]; 2] {
    let (batch, _) = batch(collator, std::slice::from_ref(record), seq_len).unwrap();
    let batch = batch.expect("a pair");
    assert_eq!(batch.rows, 2);
    [0, 1].map(|row| {
        let here = row * seq_len..(row + 1) * seq_len;
        let real = |i: &usize| batch.segment_ids[*i] != 0;
        let ids: Vec<u32> = here
            .clone()
            .filter(real)
            .map(|i| batch.input_ids[i])
            .collect();
        let trained = here.filter(|&i| batch.labels[i] != IGNORE);
        let trained: Vec<u32> = trained.map(|i| batch.labels[i] as u32).collect();
        let decode = |ids: &[u32]| tokenizer().decode_all(ids).unwrap();
        [decode(&ids), decode(&trained)]
    })
}

pub(crate) fn answers(collator: &Arc<PreferenceCollator>, record: &Value) -> [String; 2] {
    texts(collator, record, 256).map(|[_, answer]| answer)
}

pub(crate) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

pub(crate) fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

#[test]
fn strings_are_texts_as_they_are_with_the_end_of_text_after_the_answer() {
    let plain = collator(json!({}));
    let end = tokenizer().decode_all(&[tokenizer().eos_id()]).unwrap();
    let record = json!({"prompt": "What is red?", "chosen": " A rose.", "rejected": " A sea."});
    let [chosen, rejected] = texts(&plain, &record, 256);
    assert_eq!(
        chosen,
        [
            format!("What is red? A rose.{end}"),
            format!(" A rose.{end}")
        ]
    );
    assert_eq!(rejected[1], format!(" A sea.{end}"));
    // A data set that brings the end has it once (TRL has had it twice, and not at all).
    let with_end = json!({"prompt": "Q", "chosen": format!(" A{end}"), "rejected": " B"});
    assert_eq!(
        answers(&plain, &with_end),
        [format!(" A{end}"), format!(" B{end}")]
    );
    // An empty answer is one that ends at once.
    let empty = json!({"prompt": "Say nothing.", "chosen": "", "rejected": " No."});
    assert_eq!(answers(&plain, &empty), [end.clone(), format!(" No.{end}")]);
}

/// Where prompt and answer are one word to the tokenizer, its token is the answer's: no character of an answer is lost, as
/// it was where prompts were counted by their own tokens.
#[test]
fn a_token_that_reaches_from_the_prompt_into_the_answer_is_the_answers() {
    let plain = collator(json!({}));
    for (prompt, chosen, rejected) in [
        ("The ca", "t", "r"),
        ("Say th", "e end", "is"),
        ("a ", " b", "c"),
    ] {
        let record = json!({"prompt": prompt, "chosen": chosen, "rejected": rejected});
        let [[text, trained], [other, other_trained]] = texts(&plain, &record, 256);
        for (text, trained, answer) in [(text, trained, chosen), (other, other_trained, rejected)] {
            assert!(text.starts_with(&format!("{prompt}{answer}")), "{text}");
            assert!(
                text.ends_with(&trained) && trained.contains(answer),
                "{trained}"
            );
        }
    }
}

#[test]
fn without_a_prompt_it_is_what_both_begin_with_up_to_a_word() {
    let plain = collator(json!({}));
    let end = tokenizer().decode_all(&[tokenizer().eos_id()]).unwrap();
    for (chosen, rejected, answers_are) in [
        // As in HH-RLHF.
        (
            "\n\nHuman: Hi\n\nAssistant: I will.",
            "\n\nHuman: Hi\n\nAssistant: I won't.",
            [" will.", " won't."],
        ),
        ("One two three", "One two", [" three", ""]),
        ("One twofold", "One two", [" twofold", " two"]),
        ("Yes", "No", ["Yes", "No"]),
    ] {
        let record = json!({"chosen": chosen, "rejected": rejected});
        let found = answers(&plain, &record);
        // The first token of a row is predicted by none, so that of a text without a prompt is not trained on.
        let expected = answers_are.map(|answer| format!("{answer}{end}"));
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                expected.ends_with(found.as_str()),
                "{found:?} of {expected:?}"
            );
            assert!(!found.is_empty());
        }
        if chosen != "Yes" {
            assert_eq!(found, expected);
        }
    }
}

/// All ways of writing one conversation give the same tokens.
#[test]
fn every_usual_record_of_messages_is_the_same_pair() {
    let chatml = collator(json!({"template": "chatml"}));
    let [question, good, bad] = ["Who are you?", "A model.", "A fish."];
    let records = [
        // Hugging Face: an explicit prompt, of messages or a string.
        json!({"prompt": [user(question)], "chosen": [assistant(good)], "rejected": [assistant(bad)]}),
        json!({"prompt": question, "chosen": good, "rejected": bad}),
        json!({"prompt": question, "chosen": assistant(good), "rejected": assistant(bad)}),
        // An implicit one; beside it the prompt as a string, and the chosen conversation once more, as in UltraFeedback.
        json!({"chosen": [user(question), assistant(good)], "rejected": [user(question), assistant(bad)]}),
        json!({"prompt": question, "messages": [user(question), assistant(good)],
            "chosen": [user(question), assistant(good)], "rejected": [user(question), assistant(bad)]}),
        json!({"prompt": [user(question)],
            "chosen": [user(question), assistant(good)], "rejected": [user(question), assistant(bad)]}),
        // LLaMA-Factory: Alpaca's and ShareGPT's ranking records.
        json!({"instruction": question, "input": "", "chosen": good, "rejected": bad}),
        json!({"instruction": question, "chosen": good, "rejected": bad, "history": [], "system": ""}),
        json!({"conversations": [{"from": "human", "value": question}],
            "chosen": {"from": "gpt", "value": good}, "rejected": {"from": "gpt", "value": bad}}),
        // Columns of Parquet give every message the keys of all.
        json!({"prompt": null, "chosen": [{"role": "user", "content": question, "tool_calls": null}, assistant(good)],
            "rejected": [user(question), assistant(bad)]}),
    ];
    let expected = texts(&chatml, &records[0], 256);
    assert_eq!(expected[0][1], format!("{good}<|im_end|>"));
    assert_eq!(expected[1][1], format!("{bad}<|im_end|>"));
    for record in &records {
        assert_eq!(texts(&chatml, record, 256), expected, "{record}");
    }
}

#[test]
fn what_is_before_the_pair_is_not_trained_on_and_all_after_the_common_messages_is() {
    let chatml = collator(json!({"template": "chatml", "default_system": "Be brief."}));
    let before = [user("a?"), assistant("One."), user("b?")];
    let with = |more: &[Value]| Value::from([&before[..], more].concat());
    let record = json!({
        "chosen": with(&[assistant("Two."), user("c?"), assistant("Three.")]),
        "rejected": with(&[assistant("Zwei.")]),
    });
    let [chosen, rejected] = texts(&chatml, &record, 256);
    assert_eq!(chosen[1], "Two.<|im_end|>Three.<|im_end|>");
    assert_eq!(rejected[1], "Zwei.<|im_end|>");
    assert!(
        chosen[0].starts_with("<|im_start|>system\nBe brief.<|im_end|>"),
        "{}",
        chosen[0]
    );
    // History and system message of an Alpaca record are the prompt's.
    let alpaca = json!({"system": "Hear.", "history": [["a?", "One."]], "instruction": "b?", "input": "now",
        "chosen": "Two.", "rejected": "Zwei."});
    let [chosen, _] = texts(&chatml, &alpaca, 256);
    assert!(
        chosen[0].contains("system\nHear.") && chosen[0].contains("b?\nnow"),
        "{}",
        chosen[0]
    );
    assert_eq!(chosen[1], "Two.<|im_end|>");
}

#[test]
fn a_pair_too_long_loses_as_much_of_both_prompts_and_never_the_end_of_an_answer() {
    let plain = collator(json!({}));
    let prompt = "one two three four five six seven eight nine ten";
    let record = json!({"prompt": prompt, "chosen": " yes yes yes yes", "rejected": " no"});
    let whole = texts(&plain, &record, 256);
    let (made, _) = batch(&plain, std::slice::from_ref(&record), 256).unwrap();
    let made = made.unwrap();
    let longest = made.segment_ids[..256]
        .iter()
        .filter(|&&it| it != 0)
        .count();
    let (cut_batch, left_out) = batch(&plain, std::slice::from_ref(&record), longest - 3).unwrap();
    assert_eq!(
        (left_out.rows, left_out.cut_rows, left_out.cut_tokens),
        (0, 1, 6)
    );
    assert_eq!(cut_batch.unwrap().rows, 2);
    let cut = texts(&plain, &record, longest - 3);
    for (cut, whole) in cut.iter().zip(&whole) {
        assert_eq!(cut[1], whole[1]);
        assert!(whole[0].ends_with(&cut[0]) && cut[0] != whole[0], "{cut:?}");
    }
    let prompt_of =
        |[text, answer]: &[String; 2]| text.strip_suffix(answer.as_str()).map(str::to_owned);
    assert_eq!(prompt_of(&cut[0]), prompt_of(&cut[1]));
    // Of an answer that is too long by itself the end stays.
    let long = texts(&plain, &record, 4);
    assert!(whole[0][1].ends_with(&long[0][1]) && !long[0][1].is_empty());
    for (key, left) in [("skip", 1), ("error", 0)] {
        let other = collator(json!({"on_too_long": key}));
        match batch(&other, std::slice::from_ref(&record), 4) {
            Ok((batch, left_out)) => assert_eq!((batch, left_out.rows), (None, left)),
            Err(error) => {
                assert!(
                    error.to_string().contains("on_too_long") && left == 0,
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn records_of_which_no_pair_can_be_made_are_told_with_their_line() {
    let chatml = collator(json!({"template": "chatml"}));
    let good = json!({"prompt": "Hi", "chosen": "Yes.", "rejected": "No."});
    for (record, said) in [
        (json!({"prompt": "Hi", "chosen": "Yes."}), "rejected"),
        (
            json!({"prompt": "Hi", "chosen": "Yes.", "rejected": null}),
            "rejected",
        ),
        (
            json!({"prompt": "Hi", "chosen": "Yes.", "rejected": [assistant("No.")]}),
            "one of `chosen` and `rejected` is a string",
        ),
        (
            json!({"chosen": [assistant("Yes.")], "rejected": [assistant("No.")]}),
            "no question",
        ),
        (
            json!({"prompt": "Hi", "chosen": 1, "rejected": "No."}),
            "a message or a list of messages",
        ),
        (
            json!({"prompt": "Hi", "chosen": [{"role": "assistant"}], "rejected": [assistant("No.")]}),
            "message 1",
        ),
    ] {
        let error = batch(&chatml, std::slice::from_ref(&record), 64)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(said) && error.contains("pairs.jsonl"),
            "{error}"
        );
        let is_null = record.get("rejected").is_some_and(Value::is_null);
        let lenient = collator(json!({"template": "chatml", "on_bad_record": "skip"}));
        if !is_null {
            let (_, left_out) = batch(&lenient, &[record, good.clone()], 64).unwrap();
            assert_eq!(left_out.rows, 1);
        }
    }
    // Messages need a template, and strings none.
    let bytes = Arc::new(Tokenizer::bytes().unwrap());
    let plain = Arc::new(PreferenceCollator::new(PreferenceConfig::default(), bytes).unwrap());
    assert!(batch(&plain, &[good], 64).unwrap().0.is_some());
    let record = json!({"prompt": [user("Hi")], "chosen": [assistant("Yes.")], "rejected": [assistant("No.")]});
    let error = batch(&plain, &[record], 64).unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");
}

#[test]
fn a_row_is_known_by_its_tokens_and_its_answer() {
    let plain = collator(json!({}));
    let records = [
        json!({"prompt": "a b", "chosen": " c", "rejected": " d"}),
        json!({"prompt": "a", "chosen": " b c", "rejected": " d"}),
    ];
    let of = |records: &[Value], seq_len| {
        let (batch, _) = batch(&plain, records, seq_len).unwrap();
        RowKey::of_batch(&batch.unwrap())
    };
    let both = of(&records, 32);
    // Whatever is beside it, and however much padding is behind it.
    let turned = [records[1].clone(), records[0].clone()];
    assert_eq!(of(&turned, 64), [&both[2..], &both[..2]].concat());
    // The same text with another answer is another row.
    assert_ne!(both[0], both[2]);
    assert_eq!(plain.layout(), tt_collators::Layout::Grouped(2));
}
