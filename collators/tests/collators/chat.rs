//! Conversations: their text, their tokens, and which of them are trained on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tt_collators::{Batch, BatchShape, ChatCollator, Collator, IGNORE, LeftOut, Loader};
use tt_data::{Cursor, DataError, Location, Order, Row, Shard, Source, Tokenizer};

/// Records, templates and what they come to. `TT_GOLDEN` names another folder of goldens.
fn folder() -> PathBuf {
    let root = std::env::var_os("TT_GOLDEN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden"),
        PathBuf::from,
    );
    root.join("sft")
}

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::load(&folder().join("tokenizer.json"), None).unwrap())
}

fn lines(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(folder().join(name)).expect("a golden file");
    text.lines().map(str::to_owned).collect()
}

fn json_file<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&std::fs::read(folder().join(name)).expect("a golden file")).unwrap()
}

fn row(json: &str) -> Row {
    Row {
        fields: serde_json::from_str(json).unwrap(),
        at: Location::Line {
            file: Path::new("records.jsonl").into(),
            line: 7,
        },
    }
}

/// A line of `expected.jsonl`.
#[derive(Deserialize)]
struct Expected {
    id: String,
    template: String,
    text: String,
    answer_byte_spans: Vec<(usize, usize)>,
    input_ids: Vec<u32>,
    labels: Vec<i64>,
    prompt_text_with_generation_prompt: String,
}

/// What `templates.json` has of a template.
#[derive(Deserialize)]
struct Tokens {
    bos_token: Option<String>,
    eos_token: Option<String>,
    file: String,
}

impl Expected {
    fn all() -> Vec<Self> {
        let lines = lines("expected.jsonl");
        assert!(!lines.is_empty());
        lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn row(&self) -> Row {
        let (file, line) = self.id.rsplit_once('-').unwrap();
        row(&lines(&format!("{file}.jsonl"))[line.parse::<usize>().unwrap()])
    }

    fn check(&self, collator: &Arc<ChatCollator>) {
        let what = format!("{} {}", self.id, self.template);
        let row = self.row();
        let mut conversation = collator.read(&row).unwrap();
        let rendered = collator.render(&conversation).unwrap();
        assert_eq!(rendered.text, self.text, "{what}");
        let spans = rendered
            .answers
            .iter()
            .map(|it| (it.span.start, it.span.end));
        assert_eq!(spans.collect::<Vec<_>>(), self.answer_byte_spans, "{what}");
        let (ids, labels) = encoded(collator, &row, 4096).unwrap().unwrap();
        assert_eq!(
            (ids, labels),
            (self.input_ids.clone(), self.labels.clone()),
            "{what}"
        );
        conversation.messages.pop();
        let prompt = collator.prompt(&conversation).unwrap();
        assert_eq!(prompt, self.prompt_text_with_generation_prompt, "{what}");
    }
}

/// Rows that are given.
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

/// A batch of one row, as a trainer gets it; `None` if the row is left out.
fn batch(
    collator: &Arc<ChatCollator>,
    row: &Row,
    seq_len: usize,
) -> Result<Option<Batch>, DataError> {
    let shape = BatchShape {
        rows: 1,
        seq_len,
        pad_id: 0,
        vocab_size: tokenizer().vocab_size(),
    };
    let source = Arc::new(Rows(vec![row.clone()]));
    let order = Order::new(0, Shard::default(), Some(1))?;
    let collator: Arc<dyn Collator> = collator.clone();
    let mut loader = Loader::new(
        source,
        order,
        collator,
        shape,
        Cursor::default(),
        Some(1),
        0,
    )?;
    match loader.next_batch() {
        Err(DataError::NoTokens { .. }) => Ok(None),
        batch => batch,
    }
}

type Labelled = (Vec<u32>, Vec<i64>);

/// Tokens and labels of a row; `None` if it is left out.
fn encoded(
    collator: &Arc<ChatCollator>,
    row: &Row,
    sequence_length: usize,
) -> Result<Option<Labelled>, DataError> {
    let Some(batch) = batch(collator, row, sequence_length)? else {
        return Ok(None);
    };
    let len = batch.segment_ids.iter().filter(|id| **id > 0).count();
    Ok(Some((
        batch.input_ids[..len].to_vec(),
        batch.labels[..len].to_vec(),
    )))
}

fn collator(kwargs: Value) -> Arc<ChatCollator> {
    let config = serde_json::from_value(kwargs).unwrap();
    Arc::new(ChatCollator::new(config, tokenizer()).unwrap())
}

/// With the template as a checkpoint has it, without marks.
fn without_marks(collator: &ChatCollator, mut kwargs: Value) -> Arc<ChatCollator> {
    let source = collator.chat_template().unwrap();
    assert!(!source.contains("generation %}"), "{source}");
    kwargs["template"] = source.into();
    self::collator(kwargs)
}

/// A template of the goldens by name, in full, and as a checkpoint has the named one.
fn golden_collators(name: &str) -> Vec<Arc<ChatCollator>> {
    let tokens: BTreeMap<String, Tokens> = json_file("templates.json");
    let is_native = name == "alpaca_native";
    let tokens = &tokens[if is_native { "alpaca" } else { name }];
    let kwargs = |template: &str| json!({"template": template, "bos_token": tokens.bos_token, "eos_token": tokens.eos_token});
    let named = collator(kwargs(name));
    let mut collators = vec![without_marks(&named, kwargs("")), named];
    if !is_native {
        let file = folder().join(&tokens.file);
        collators.push(collator(kwargs(file.to_str().unwrap())));
    }
    collators
}

#[test]
fn golden_sft_every_record_has_its_text_its_answers_its_tokens_and_its_labels() {
    for expected in Expected::all() {
        for collator in golden_collators(&expected.template) {
            expected.check(&collator);
        }
    }
}

#[test]
fn golden_sft_the_tokenizers_own_template_is_taken_where_none_is_named() {
    let collator = collator(json!({}));
    for expected in Expected::all().iter().filter(|it| it.template == "chatml") {
        expected.check(&collator);
    }
}

#[test]
fn golden_sft_texts_have_their_tokens() {
    #[derive(Deserialize)]
    struct Case {
        text: String,
        ids: Vec<u32>,
        tokens: Vec<String>,
        decoded: String,
    }
    let tokenizer = tokenizer();
    for case in json_file::<Vec<Case>>("encode.json") {
        let ids = tokenizer.encode(&case.text).unwrap();
        assert_eq!(ids, case.ids, "{:?}", case.text);
        let spans = tokenizer.encode_with_spans(&case.text).unwrap();
        let (with_spans, spans): (Vec<u32>, Vec<_>) = spans.into_iter().unzip();
        assert_eq!(with_spans, case.ids, "{:?}", case.text);
        assert!(spans.is_sorted_by_key(|span| span.start), "{spans:?}");
        let tokens = ids.iter().map(|&id| tokenizer.token(id).unwrap());
        assert_eq!(tokens.collect::<Vec<_>>(), case.tokens, "{:?}", case.text);
        assert_eq!(
            tokenizer.decode(&ids).unwrap(),
            case.decoded,
            "{:?}",
            case.text
        );
    }
}

/// The parts of a row's text that are trained on, each as its tokens are decoded with special ones.
fn trained(collator: &Arc<ChatCollator>, json: &str) -> Vec<String> {
    trained_of(collator, json, 4096).unwrap()
}

fn trained_of(
    collator: &Arc<ChatCollator>,
    json: &str,
    sequence_length: usize,
) -> Option<Vec<String>> {
    let (ids, labels) = encoded(collator, &row(json), sequence_length).unwrap()?;
    let mut parts: Vec<Vec<u32>> = vec![Vec::new()];
    for (id, label) in ids.into_iter().zip(labels) {
        match label {
            IGNORE => parts.push(Vec::new()),
            label => {
                assert_eq!(label, i64::from(id));
                parts.last_mut().unwrap().push(id);
            }
        }
    }
    parts.retain(|part| !part.is_empty());
    let tokenizer = tokenizer();
    Some(
        parts
            .iter()
            .map(|part| tokenizer.as_hf().decode(part, false).unwrap())
            .collect(),
    )
}

fn text(collator: &Arc<ChatCollator>, json: &str) -> Result<String, String> {
    let conversation = collator
        .read(&row(json))
        .map_err(|error| error.to_string())?;
    collator.render(&conversation).map(|rendered| rendered.text)
}

const TWO_TURNS: &str = r#"{"messages": [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"}, {"role": "assistant", "content": "Uno."},
    {"role": "user", "content": "Two?"}, {"role": "assistant", "content": "Due."}]}"#;

#[test]
fn what_is_trained_on_can_be_chosen() {
    let on = |train_on: &str| {
        trained(
            &collator(json!({"template": "chatml", "train_on": train_on})),
            TWO_TURNS,
        )
    };
    assert_eq!(on("answers"), ["Uno.<|im_end|>", "Due.<|im_end|>"]);
    assert_eq!(on("last_answer"), ["Due.<|im_end|>"]);
    let all = on("all");
    assert_eq!(all.len(), 1);
    // The first token has none that predicts it.
    assert!(all[0].starts_with("system\nBe brief."), "{all:?}");
    assert!(all[0].ends_with("Due.<|im_end|>\n"), "{all:?}");
}

#[test]
fn every_named_template_renders_every_turn_and_trains_on_the_answers_with_an_end() {
    for name in ChatCollator::templates() {
        let collator = collator(json!({"template": name, "bos_token": "<s>", "eos_token": "</s>"}));
        let text = text(&collator, TWO_TURNS).unwrap();
        for part in ["Be brief.", "One?", "Uno.", "Two?", "Due."] {
            assert_eq!(text.matches(part).count(), 1, "{name}: {text}");
        }
        assert!(text.matches("<s>").count() <= 2, "{name}: {text}");
        let trained = trained(&collator, TWO_TURNS);
        assert_eq!(trained.len(), 2, "{name}: {trained:?}");
        for (part, answer) in trained.iter().zip(["Uno.", "Due."]) {
            let end = part.split(answer).nth(1).unwrap();
            assert!(!end.is_empty(), "{name}: no end in {part:?}");
            assert!(!end.ends_with('\n'), "{name}: {part:?}");
        }
        // What a checkpoint has of it asks with the beginning of what was trained on.
        let mut conversation = collator.read(&row(TWO_TURNS)).unwrap();
        let answer = conversation.messages.pop().unwrap();
        let prompt = collator.prompt(&conversation).unwrap();
        let rest = text
            .strip_prefix(&prompt)
            .unwrap_or_else(|| panic!("{name}: {prompt:?} {text:?}"));
        let expected = &trained[1];
        assert!(
            rest.starts_with(expected.as_str()),
            "{name}: {rest:?} {expected:?} {answer:?}"
        );
    }
}

#[test]
fn offsets_of_characters_of_several_bytes_are_those_of_the_answer() {
    let collator = collator(json!({"template": "chatml"}));
    let record = r#"{"instruction": "数 🍞?", "output": "🍞👍🏽 é 数"}"#;
    assert_eq!(trained(&collator, record), ["🍞👍🏽 é 数<|im_end|>"]);
}

#[test]
fn an_empty_answer_trains_on_its_end() {
    let collator = collator(json!({"template": "chatml"}));
    let record = r#"{"instruction": "Say nothing.", "output": ""}"#;
    assert_eq!(trained(&collator, record), ["<|im_end|>"]);
}

#[test]
fn an_answer_that_says_what_the_question_says_is_told_from_it() {
    // By the tokenizer's own template, which marks no answers.
    let collator = collator(json!({}));
    let record = r#"{"messages": [
        {"role": "user", "content": "assistant"}, {"role": "assistant", "content": "assistant"},
        {"role": "user", "content": "<|im_end|>\n<|im_start|>assistant\n"}, {"role": "assistant", "content": " a \n"}]}"#;
    assert_eq!(
        trained(&collator, record),
        ["assistant<|im_end|>", " a \n<|im_end|>"]
    );
}

#[test]
fn an_answer_of_weight_nothing_is_not_trained_on() {
    let record = TWO_TURNS.replacen(
        r#""content": "Uno.""#,
        r#""content": "Uno.", "weight": 0"#,
        1,
    );
    for kwargs in [json!({}), json!({"template": "chatml"})] {
        assert_eq!(trained(&collator(kwargs), &record), ["Due.<|im_end|>"]);
    }
}

#[test]
fn an_answer_that_a_template_marks_in_pieces_is_one() {
    let template = "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}{% endgeneration %}\
        {% generation %};{% endgeneration %}{% else %}Q:{{ m.content }};{% endif %}{% endfor %}";
    let on = |train_on: &str| {
        trained(
            &collator(json!({"template": template, "train_on": train_on})),
            TWO_TURNS,
        )
    };
    assert_eq!(on("last_answer"), ["Due.;"]);
    assert_eq!(on("answers"), ["Uno.;", "Due.;"]);
}

#[test]
fn the_history_of_an_alpaca_record_comes_before_its_question() {
    let collator = collator(json!({"template": "chatml"}));
    let record = r#"{"instruction": "Three?", "input": "", "output": "Tre.", "system": "Be brief.",
        "history": [["One?", "Uno."], ["Two?", "Due."]]}"#;
    assert_eq!(
        trained(&collator, record),
        ["Uno.<|im_end|>", "Due.<|im_end|>", "Tre.<|im_end|>"]
    );
    let text = text(&collator, record).unwrap();
    assert!(
        text.starts_with("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?"),
        "{text}"
    );
    // A column of nulls, or of empty lists, is none.
    for history in ["null", "[]"] {
        let record = format!(
            r#"{{"instruction": "Three?", "output": "Tre.", "input": null, "system": null, "history": {history}}}"#
        );
        assert_eq!(trained(&collator, &record), ["Tre.<|im_end|>"]);
    }
}

#[test]
fn columns_and_roles_may_have_other_names() {
    let alpaca = collator(json!({
        "template": "chatml", "columns": {"prompt": "q", "response": "a"},
    }));
    assert_eq!(
        trained(&alpaca, r#"{"q": "One?", "a": "Uno."}"#),
        ["Uno.<|im_end|>"]
    );
    let sharegpt = collator(json!({
        "template": "chatml", "columns": {"messages": "turns"},
        "tags": {"role_tag": "who", "content_tag": "what", "user_tag": "me", "assistant_tag": "you"},
    }));
    let record = r#"{"turns": [{"who": "me", "what": "One?"}, {"who": "you", "what": "Uno."}]}"#;
    assert_eq!(trained(&sharegpt, record), ["Uno.<|im_end|>"]);
    // A record may lack a system message; a part of its question that is named and not there is a slip.
    let read = |columns: Value, record: &str| {
        let collator = collator(json!({"template": "chatml", "columns": columns}));
        let read = collator.read(&row(record)).map(|_| ());
        read.map_err(|error| error.to_string())
    };
    let record = r#"{"instruction": "One?", "output": "Uno."}"#;
    read(json!({"system": "sys"}), record).unwrap();
    let error = read(json!({"query": "more"}), record).unwrap_err();
    assert!(
        error.contains("no column `more`") && error.contains("instruction, output"),
        "{error}"
    );
}

#[test]
fn the_system_message_of_a_column_or_of_the_config_is_there_once() {
    let collator = collator(json!({"template": "chatml", "default_system": "Hello."}));
    let count =
        |record: &str, system: &str| text_with_default(&collator, record).matches(system).count();
    let plain = r#"{"instruction": "One?", "output": "Uno."}"#;
    assert_eq!(count(plain, "<|im_start|>system\nHello.<|im_end|>"), 1);
    assert_eq!(count(TWO_TURNS, "<|im_start|>system\n"), 1);
    assert_eq!(count(TWO_TURNS, "Be brief."), 1);
}

fn text_with_default(collator: &Arc<ChatCollator>, json: &str) -> String {
    let (ids, _) = encoded(collator, &row(json), 4096).unwrap().unwrap();
    tokenizer().as_hf().decode(&ids, false).unwrap()
}

#[test]
fn a_record_of_no_conversation_is_refused_with_its_place() {
    let collator = collator(json!({"template": "chatml"}));
    for (record, why) in [
        (
            r#"{"text": "a"}"#,
            "none of the columns `messages`, `conversations` and `instruction`, but text",
        ),
        (
            r#"{"messages": [{"role": "user", "content": null}]}"#,
            "message 1: `content` of the role `user` is missing or null",
        ),
        (
            r#"{"messages": [{"role": "user", "content": 3}]}"#,
            "message 1: `content` is neither a string nor a list",
        ),
        (
            r#"{"messages": [{"content": "a"}]}"#,
            "message 1: `from` is missing",
        ),
        (r#"{"messages": []}"#, "`messages` is empty"),
        (
            r#"{"messages": "a"}"#,
            "field `messages` is a string, where a list of messages is needed",
        ),
        (
            r#"{"conversations": [{"from": "bot", "value": "a"}]}"#,
            "message 1: unknown role `bot`; known: human, gpt",
        ),
        (
            r#"{"conversations": [{"from": "function_call", "value": "a"}]}"#,
            "the call of a tool is not JSON",
        ),
        (r#"{"instruction": "a"}"#, "no field `output`"),
        (
            r#"{"instruction": "a", "output": null}"#,
            "field `output` is null",
        ),
        (
            r#"{"instruction": "a", "output": "b", "history": [["a"]]}"#,
            "entry 1 of `history` is no pair",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
            "of the type `image_url`; only text",
        ),
    ] {
        let error = encoded(&collator, &row(record), 64)
            .unwrap_err()
            .to_string();
        assert!(error.contains(why), "{record}: {error}");
        assert!(error.contains("records.jsonl:7"), "{error}");
    }
}

#[test]
fn what_a_template_has_no_place_for_is_refused() {
    let tools = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "tools": [{"type": "function", "function": {"name": "f"}}]}"#;
    let call = r#"{"messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}"#;
    let tool =
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}"#;
    for (template, record, why) in [
        ("chatml", tools, "no place for tools"),
        ("llama2", call, "no place for calls of tools"),
        ("llama2", tool, "no place for a message of the role tool"),
        // It drops the system message.
        (
            "{% for m in messages if m.role != 'system' %}{{ m.content }};{% endfor %}",
            TWO_TURNS,
            "leaves out message 1 (system)",
        ),
        (
            "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{% endfor %}",
            TWO_TURNS,
            "Roles must alternate",
        ),
    ] {
        let error = encoded(&collator(json!({"template": template})), &row(record), 4096);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains(why) && error.contains("records.jsonl:7"),
            "{template}: {error}"
        );
    }
}

#[test]
fn a_template_in_which_an_answer_cannot_be_found_is_refused() {
    for template in [
        // The answer stands twice, and the question is not asked with a beginning of the text.
        "{{ messages[-1].content }}{% for m in messages %}{{ m.content }};{% endfor %}",
        // What comes before depends on the answer.
        "{{ messages[-1].content | length }}{% for m in messages %}{{ m.content }};{% endfor %}",
    ] {
        let record = r#"{"instruction": "One?", "output": "Uno."}"#;
        let error = encoded(&collator(json!({"template": template})), &row(record), 4096);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("cannot be told apart for certain at message 2"),
            "{error}"
        );
    }
}

#[test]
fn a_template_that_changes_earlier_answers_is_split_all_the_same() {
    // Thoughts are left out of all answers but the last, as reasoning models have it.
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {%- if m.role == 'assistant' %}{% set parts = m.content.split('</think>') %}{{ '\\n' }}\
        {%- if loop.last %}<think>\n{{ parts[0].split('<think>')[-1].strip('\\n') if parts | length > 1 }}\n</think>\n\n{% endif %}\
        {{- parts[-1].lstrip('\\n') }}{% else %}\n{{ m.content }}{% endif %}<|im_end|>\n\
        {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}";
    let record = r#"{"messages": [
        {"role": "user", "content": "One?"}, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nUno."},
        {"role": "user", "content": "Two?"}, {"role": "assistant", "content": "<think>\nHa.\n</think>\n\nDue."}]}"#;
    let collator = collator(json!({"template": template}));
    let trained = trained(&collator, record);
    assert_eq!(
        trained.len(),
        2,
        "{:?} {trained:?}",
        text(&collator, record)
    );
    assert_eq!(trained[0], "Uno.<|im_end|>");
    assert!(
        trained[1].ends_with("Ha.\n</think>\n\nDue.<|im_end|>"),
        "{trained:?}"
    );
}

#[test]
fn a_header_that_a_template_does_not_ask_with_is_not_trained_on() {
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}</s>\n{% endfor %}";
    let collator = collator(json!({"template": template}));
    assert_eq!(trained(&collator, TWO_TURNS), ["Uno.</s>", "Due.</s>"]);
}

#[test]
fn what_a_template_asks_with_is_not_trained_on() {
    // The model is asked with the beginning of a thought.
    let template = "{% for m in messages %}<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}";
    let template = template
        .replace("assistant\n<think>\n", "{{ 'assistant\\n<think>\\n' }}")
        .replace("<|im_end|>\n", "{{ '<|im_end|>\\n' }}");
    let collator = collator(json!({"template": template}));
    let record = r#"{"instruction": "One?", "output": "<think>\nHm.</think>Uno."}"#;
    assert_eq!(trained(&collator, record), ["Hm.</think>Uno.<|im_end|>"]);
    // An answer without a thought is not what it is asked for, and begins where it begins.
    let record = r#"{"instruction": "One?", "output": "Uno."}"#;
    assert_eq!(trained(&collator, record), ["Uno.<|im_end|>"]);
}

#[test]
fn tools_and_their_calls_are_passed_through_and_the_call_is_trained_on() {
    let record = r#"{"tools": "[{\"type\": \"function\", \"function\": {\"name\": \"sum\", \"description\": \"<é>\"}}]",
        "conversations": [{"from": "human", "value": "1+2?"}, {"from": "function_call", "value": "{\"name\": \"sum\", \"arguments\": {\"a\": [1, 2]}}"},
        {"from": "observation", "value": "3"}, {"from": "gpt", "value": "It is 3."}]}"#;
    for template in ["qwen2", "qwen3"] {
        let collator = collator(json!({"template": template}));
        let text = text(&collator, record).unwrap();
        let tool = r#"{"type": "function", "function": {"name": "sum", "description": "<é>"}}"#;
        assert!(
            text.contains(&format!("<tools>\n{tool}\n</tools>")),
            "{text}"
        );
        assert!(
            text.contains("<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"),
            "{text}"
        );
        let call = "<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"a\": [1, 2]}}\n</tool_call><|im_end|>";
        let trained = trained(&collator, record);
        assert!(trained[0].ends_with(call), "{trained:?}");
        assert!(trained[1].ends_with("It is 3.<|im_end|>"), "{trained:?}");
        // The same without the marks, by comparing.
        let plain = without_marks(&collator, json!({}));
        assert_eq!(self::trained(&plain, record), trained, "{template}");
    }
}

#[test]
fn what_a_tool_returned_is_not_trained_on_in_the_turn_that_called_it() {
    let record = r#"{"messages": [{"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "sum", "arguments": {}}}]},
        {"role": "tool", "content": "3"}, {"role": "assistant", "content": "It is 3."}]}"#;
    // The result is written after the call.
    let after = "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\nA:{% elif m.role == 'assistant' %}\
        {{ ' ' + m.content }}{% for c in m.tool_calls %}[{{ c.function.name }}]=\
        {{- messages[loop.index0 + 2].content }}{% endfor %};{% endif %}{% endfor %}";
    let error = encoded(&collator(json!({"template": after})), &row(record), 4096);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("cannot be told apart for certain at message 2"),
        "{error}"
    );
    // The same as a message of its own.
    let apart = "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\nA:{% elif m.role == 'assistant' %}\
        {{ ' ' + m.content }}{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %};{% else %}={{ m.content }}\nA:{% endif %}{% endfor %}";
    let collator = collator(json!({"template": apart}));
    assert_eq!(trained(&collator, record), [" [sum];", " It is 3.;"]);
}

#[test]
fn openai_and_sharegpt_give_a_call_of_a_tool_the_same_form() {
    let collator = collator(json!({"template": "qwen2"}));
    let openai = r#"{"messages": [{"role": "user", "content": "1+2?"}, {"role": "assistant", "content": null, "tool_calls":
        [{"id": "1", "type": "function", "function": {"name": "sum", "arguments": "{\"a\": 1}"}}], "name": null}]}"#;
    let sharegpt = r#"{"conversations": [{"from": "human", "value": "1+2?"},
        {"from": "function_call", "value": "[{\"name\": \"sum\", \"arguments\": {\"a\": 1}}]"}]}"#;
    assert_eq!(text(&collator, openai), text(&collator, sharegpt));
}

#[test]
fn whole_turns_are_kept_where_they_fit() {
    let first = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\nUno.<|im_end|>\n";
    let fits = tokenizer().encode(first).unwrap().len();
    let cut = |train_on: &str, most: usize| {
        let collator = collator(json!({"template": "chatml", "train_on": train_on}));
        trained_of(&collator, TWO_TURNS, most)
    };
    let parts = |parts: &[&str]| {
        Some(
            parts
                .iter()
                .map(|part| (*part).to_owned())
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(
        cut("answers", 4096),
        parts(&["Uno.<|im_end|>", "Due.<|im_end|>"])
    );
    assert_eq!(cut("answers", fits + 3), parts(&["Uno.<|im_end|>"]));
    assert_eq!(cut("last_answer", fits + 3), parts(&["Due.<|im_end|>"]));
    // A turn that does not fit is cut off at the end.
    assert_eq!(cut("answers", fits - 2), parts(&["Uno."]));
    assert_eq!(cut("answers", 8), None);
}

/// What is left out of two rows, of which the other is short, whichever comes first.
fn left_out(kwargs: Value, seq_len: usize) -> Result<LeftOut, DataError> {
    let short =
        r#"{"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]}"#;
    left_out_beside(short, kwargs, seq_len)
}

/// What is left out of two rows, of which `other` is the other, whichever comes first.
fn left_out_beside(other: &str, kwargs: Value, seq_len: usize) -> Result<LeftOut, DataError> {
    let mut orders = (0..6).map(|seed| left_out_in_order(other, kwargs.clone(), seq_len, seed));
    let first = orders.next().expect("six")?;
    for other in orders {
        assert_eq!(other?, first);
    }
    Ok(first)
}

fn left_out_in_order(
    other: &str,
    kwargs: Value,
    seq_len: usize,
    seed: u64,
) -> Result<LeftOut, DataError> {
    let collator = collator(kwargs);
    let shape = BatchShape {
        rows: 1,
        seq_len,
        pad_id: 0,
        vocab_size: tokenizer().vocab_size(),
    };
    let source = Arc::new(Rows(vec![row(TWO_TURNS), row(other)]));
    let order = Order::new(seed, Shard::default(), Some(2))?;
    let mut loader = Loader::new(
        source,
        order,
        collator,
        shape,
        Cursor::default(),
        Some(1),
        0,
    )?;
    let mut all = LeftOut::default();
    while let Some(batch) = loader.next_batch()? {
        all += batch.left_out;
    }
    all += loader.take_left_out();
    Ok(all)
}

#[test]
fn what_is_cut_and_left_out_is_counted() {
    let most = 40;
    assert_eq!(
        left_out(json!({"template": "chatml"}), 4096).unwrap(),
        LeftOut::default()
    );
    let cut = left_out(json!({"template": "chatml"}), most).unwrap();
    assert_eq!((cut.rows, cut.cut_rows), (0, 1));
    assert!(cut.cut_tokens > 0);
    let short = left_out(json!({"template": "chatml"}), 12).unwrap();
    assert_eq!((short.rows, short.cut_rows), (1, 0));
    let skipped = left_out(json!({"template": "chatml", "on_too_long": "skip"}), most).unwrap();
    assert_eq!((skipped.rows, skipped.cut_rows), (1, 0));
    let error = |kwargs: Value, most: usize| left_out(kwargs, most).unwrap_err().to_string();
    let too_long = error(json!({"template": "chatml", "on_too_long": "error"}), most);
    assert!(
        too_long.contains("more than data.sequence_length=40"),
        "{too_long}"
    );
    let no_target = error(json!({"template": "chatml", "on_no_target": "error"}), 12);
    assert!(
        no_target.contains("nothing to train on in the 12 tokens"),
        "{no_target}"
    );
}

#[test]
fn malformed_records_are_errors_unless_they_are_to_be_left_out() {
    for record in [
        r#"{"messages": "hello"}"#,
        r#"{"messages": [{"role": "user"}]}"#,
        r#"{"other": 1}"#,
    ] {
        let of = |kwargs| left_out_beside(record, kwargs, 4096);
        assert!(of(json!({"template": "chatml"})).is_err(), "{record}");
        let skip = json!({"template": "chatml", "on_bad_record": "skip"});
        assert_eq!(of(skip).unwrap().rows, 1, "{record}");
    }
}

#[test]
fn a_bad_template_is_refused_when_it_is_named() {
    let refuse = |template: &str| {
        let config = serde_json::from_value(json!({"template": template})).unwrap();
        let error = ChatCollator::new(config, tokenizer())
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains(if template.ends_with(".jinja") {
                template
            } else {
                "data.collator.kwargs.template"
            }),
            "{error}"
        );
        error
    };
    assert!(refuse("{% for %}").contains("syntax error"));
    assert!(refuse("nowhere.jinja").contains("No such file"));
    assert!(refuse("chatlm").contains("known: alpaca, "));
    let bare = Arc::new(Tokenizer::bytes().unwrap());
    let error = ChatCollator::new(tt_collators::ChatConfig::default(), bare)
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("brings no chat template"),
        "{error}"
    );
}

#[test]
fn templates_written_for_python_render_as_there() {
    // Each with what jinja2 3.1 makes of it in `transformers`.
    for (template, expected) in [
        (
            "{{ none }} {{ true }} {{ [1, 'a', none] }} {{ {'a': 1.0} }}",
            "None True [1, 'a', None] {'a': 1.0}",
        ),
        (
            "{{ ' a b '.strip() ~ 'xay'.split('a')[-1] ~ 'abc'[::-1] ~ 'abc'[1:] ~ 'Ab'.lower().upper() }}",
            "a bycbabcAB",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "5",
        ),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "023",
        ),
        (
            "{{ {'b': '<é>\\n', 'a': [1, {}]} | tojson }}",
            "{\"b\": \"<é>\\n\", \"a\": [1, {}]}",
        ),
        (
            "{{ {'b': [1, 2], 'a': []} | tojson(indent=2) }}",
            "{\n  \"b\": [\n    1,\n    2\n  ],\n  \"a\": []\n}",
        ),
        (
            "{{ {'b': 'é'} | tojson(ensure_ascii=True) }}",
            "{\"b\": \"\\u00e9\"}",
        ),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        (
            "{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}",
            "a=1",
        ),
        (
            "{% if messages[0]['nothing'] is defined %}a{% else %}b{% endif %}{{ nothing }}{{ messages[0].get('nothing', 'c') }}",
            "bc",
        ),
        (
            "{% if tools is not none %}a{% endif %}{% if tools is defined %}b{% endif %}{% if 'role' in messages[0] %}c{% endif %}",
            "bc",
        ),
        (
            "{% macro f(x, y='z') %}{{ x }}{{ y }}{% endmacro %}{{ f('a') }}",
            "az",
        ),
        (
            "a\n    {% if true %}\n  b\n    {% endif %}\nc\n",
            "a\n  b\nc",
        ),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
            "2",
        ),
        (
            "{{ (messages | first).role }} {{ (messages | map(attribute='role') | list)[-1] }}",
            "system assistant",
        ),
        (
            "{{ 'a' if messages[0].content is string and messages is not mapping and messages is iterable else 'b' }}",
            "a",
        ),
    ] {
        let collator = collator(json!({"template": template}));
        let conversation = collator.read(&row(TWO_TURNS)).unwrap();
        assert_eq!(collator.prompt(&conversation).unwrap(), expected);
    }
}
