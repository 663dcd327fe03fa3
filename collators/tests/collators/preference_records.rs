//! Records of pairs that say more than a prompt and two answers, or less: nothing is passed over in silence, nothing is there
//! twice.

use serde_json::{Value, json};

use crate::preference::{answers, assistant, batch, collator, texts, user};

fn system(text: &str) -> Value {
    json!({"role": "system", "content": text})
}

/// What is said of a record under `config`.
#[track_caller]
fn error(config: Value, record: Value) -> String {
    let error = batch(&collator(config), &[record], 256).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("pairs.jsonl") && said.contains('3'), "{said}");
    said
}

#[track_caller]
fn assert_says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_question_in_a_column_that_is_not_known_is_an_error() {
    for (record, column) in [
        (
            json!({"query": "What?", "chosen": "Because so", "rejected": "Nothing"}),
            "query",
        ),
        (
            json!({"ask": "What?", "chosen": "Because so", "rejected": "Nothing"}),
            "ask",
        ),
        // Both begin alike, as where answers begin with a thought.
        (
            json!({"query": "What?", "chosen": "I think so", "rejected": "I think not"}),
            "query",
        ),
        (
            json!({"messages": [user("What?")], "chosen": "So", "rejected": "Nothing"}),
            "messages",
        ),
        // What is known to be something else is not taken for it.
        (
            json!({"system": "S", "ask": "What?", "chosen": "So", "rejected": "Nothing"}),
            "ask",
        ),
    ] {
        let said = error(json!({}), record);
        let named = format!("columns.prompt={column}");
        assert_says(
            &said,
            &[&named, "columns=[chosen,rejected]", "chosen, rejected"],
        );
    }
    // What is no text is no question, and what the texts begin with is there.
    let plain = collator(json!({}));
    for record in [
        json!({"chosen": "Yes it is", "rejected": "No it is", "score": 0.5, "tags": ["a"], "note": " "}),
        json!({"chosen": "Hi\nYes it is", "rejected": "Hi\nNo it is", "query": "Hi", "source": "a b"}),
    ] {
        assert!(batch(&plain, &[record], 64).unwrap().0.is_some());
    }
}

#[test]
fn a_question_is_a_prompt() {
    let record = json!({"question": "What?", "chosen": " So", "rejected": " No"});
    let [[text, trained], _] = texts(&collator(json!({})), &record, 64);
    assert!(
        text.starts_with("What? So") && trained.starts_with(" So"),
        "{text}"
    );
    // Intel/orca_dpo_pairs.
    let record = json!({"system": "SYS", "question": "What?", "chosen": "Because so", "rejected": "Nothing"});
    let [[text, trained], _] = texts(&collator(json!({"template": "chatml"})), &record, 64);
    assert!(
        text.contains("system\nSYS<|im_end|>") && text.contains("user\nWhat?<|im_end|>"),
        "{text}"
    );
    assert_eq!(trained, "Because so<|im_end|>");
}

#[test]
fn what_only_a_template_has_a_place_for_is_an_error_without_one() {
    let with = |key: &str, value: Value| {
        let mut record = json!({"prompt": "p", "chosen": " a", "rejected": " b"});
        record[key] = value;
        record
    };
    let tools = json!([{"name": "clock"}]);
    for (config, record, what) in [
        (json!({}), with("system", json!("Be brief.")), "`system`"),
        (json!({}), with("tools", tools), "`tools`"),
        (
            json!({"default_system": "Hi"}),
            with("system", json!("")),
            "default_system`",
        ),
        (
            json!({"columns": {"query": "q"}}),
            with("q", json!("more")),
            "`q`",
        ),
        (
            json!({"columns": {"prompt": "prompt"}}),
            with("input", json!("more")),
            "`input`",
        ),
        (
            json!({"columns": {"history": "h"}}),
            with("h", json!([["a", "b"]])),
            "`h`",
        ),
        (
            json!({}),
            json!({"system": "S", "chosen": "One two", "rejected": "One three"}),
            "`system`",
        ),
    ] {
        let said = error(config, record);
        assert_says(&said, &[what, "data.collator.kwargs.template=chatml"]);
    }
    let plain = collator(json!({}));
    let none =
        json!({"prompt": "p", "system": "", "tools": "[]", "chosen": " a", "rejected": " b"});
    assert!(batch(&plain, &[none], 64).unwrap().0.is_some());
    // As `dataset_info.json` maps Alpaca's columns.
    let mapped = collator(
        json!({"template": "chatml", "columns": {"prompt": "instruction", "query": "input"}}),
    );
    let record = json!({"instruction": "Add.", "input": "1 and 2", "chosen": "3", "rejected": "4"});
    let [[text, _], _] = texts(&mapped, &record, 64);
    assert!(text.contains("user\nAdd.\n1 and 2<|im_end|>"), "{text}");
    // A column has one meaning.
    let input = collator(json!({"template": "chatml", "columns": {"prompt": "input"}}));
    let record = json!({"input": "Add.", "chosen": "3", "rejected": "4"});
    let [[text, _], _] = texts(&input, &record, 64);
    assert!(text.contains("user\nAdd.<|im_end|>"), "{text}");
}

#[test]
fn a_template_without_a_prompt_is_told_that_it_lacks_one() {
    let record = json!({"system": "S", "chosen": "One two", "rejected": "One three"});
    let said = error(json!({"template": "chatml"}), record);
    assert_says(&said, &["`system`", "columns.prompt"]);
}

#[test]
fn a_column_that_is_named_for_the_question_has_to_be_there() {
    let record = json!({"prompt": "p", "chosen": " a", "rejected": " b"});
    for key in ["prompt", "query"] {
        let said = error(json!({"columns": {key: "q"}}), record.clone());
        assert_says(&said, &["`q`", "prompt, chosen, rejected"]);
    }
    let mut with_null = record.clone();
    with_null["q"] = Value::Null;
    let mapped = collator(json!({"columns": {"query": "q"}}));
    assert!(batch(&mapped, &[with_null], 64).unwrap().0.is_some());
    // Lines of JSON leave these out where there are none.
    for key in ["history", "system", "tools"] {
        let mapped = collator(json!({"columns": {key: "q"}}));
        assert!(
            batch(&mapped, std::slice::from_ref(&record), 64)
                .unwrap()
                .0
                .is_some()
        );
    }
}

#[test]
fn a_prompt_beside_whole_conversations_counts_once() {
    let chatml = collator(json!({"template": "chatml"}));
    let whole = |answer: &str| json!([system("S"), user("p"), assistant(answer)]);
    let pair = |prompt: Value, chosen: Value, rejected: Value| {
        texts(
            &chatml,
            &json!({"prompt": prompt, "chosen": chosen, "rejected": rejected}),
            256,
        )
    };
    let expected = pair(
        json!([system("S"), user("p")]),
        json!([assistant("a")]),
        json!([assistant("b")]),
    );
    assert_eq!(expected[0][0].matches("user\np<").count(), 1);
    for (prompt, chosen, rejected) in [
        (json!([user("p")]), whole("a"), whole("b")),
        // Each answer by itself.
        (json!([user("p")]), whole("a"), json!([assistant("b")])),
        (json!([user("p ")]), json!(assistant("a")), whole("b")),
        (json!("p"), whole("a"), json!([assistant("b")])),
        (json!("p"), json!([assistant("a")]), whole("b")),
        (
            json!([system("S"), user("p")]),
            json!([user("p"), assistant("a")]),
            json!([user("p"), assistant("b")]),
        ),
        (
            json!([user("p")]),
            whole("a"),
            json!([user("p"), assistant("b")]),
        ),
        (
            json!([system("S")]),
            json!([user("p"), assistant("a")]),
            json!([user("p"), assistant("b")]),
        ),
    ] {
        let what = format!("{prompt} {chosen} {rejected}");
        let [chosen, rejected] = pair(prompt, chosen, rejected);
        assert_eq!(chosen[1], expected[0][1], "{what}");
        assert_eq!(
            chosen[0].trim(),
            expected[0][0].replace("p<", &p_of(&chosen[0])).trim(),
            "{what}"
        );
        assert_eq!(rejected[1], expected[1][1], "{what}");
        assert_eq!(rejected[0].matches("user\np").count(), 1, "{what}");
        assert_eq!(rejected[0].matches("system\nS").count(), 1, "{what}");
    }
    // A text that holds all questions, and one of several.
    let turns = |answer: &str| json!([user("x?"), assistant("y"), user("z?"), assistant(answer)]);
    for prompt in ["x?", "z?", "Human: x? AI: y Human: z?", ""] {
        let [chosen, _] = pair(json!(prompt), turns("a"), turns("b"));
        assert_eq!(chosen[1], "a<|im_end|>");
        assert_eq!(chosen[0].matches("<|im_start|>user").count(), 2);
    }
    // What was said before the conversation.
    let [chosen, _] = pair(
        json!([user("x?"), assistant("y")]),
        json!([user("z?"), assistant("a")]),
        json!([user("z?"), assistant("b")]),
    );
    assert_eq!(chosen[1], "a<|im_end|>");
    assert_eq!(chosen[0].matches("<|im_start|>user").count(), 2);
}

/// The prompt as it is written, a blank after it or not.
fn p_of(text: &str) -> String {
    if text.contains("user\np <") {
        "p <"
    } else {
        "p<"
    }
    .to_owned()
}

#[test]
fn a_conversation_about_something_else_than_its_prompt_is_an_error() {
    let whole = |question: &str, answer: &str| json!([user(question), assistant(answer)]);
    for prompt in [
        json!("p"),
        json!([user("p")]),
        json!([user("p"), assistant("a")]),
    ] {
        let question = if prompt.as_array().is_some_and(|it| it.len() == 2) {
            "p"
        } else {
            "q"
        };
        let record = json!({"prompt": prompt, "chosen": whole(question, "a"), "rejected": whole(question, "b")});
        let said = error(json!({"template": "chatml"}), record);
        assert_says(
            &said,
            &[
                "the conversation in `chosen`",
                "data.collator.kwargs.columns",
            ],
        );
    }
    let record = json!({"prompt": "p", "chosen": whole("p", "a"), "rejected": whole("q", "b")});
    assert_says(
        &error(json!({"template": "chatml"}), record),
        &["`rejected`"],
    );
    let scene = |text: &str| json!([system(text), user("p"), assistant(text)]);
    let record = json!({"prompt": [user("p")], "chosen": scene("A"), "rejected": scene("B")});
    assert_says(
        &error(json!({"template": "chatml"}), record),
        &["another system message in `rejected`"],
    );
    // What was said before is before both or none.
    let before = json!([user("x?"), assistant("y")]);
    let record = json!({"prompt": before, "chosen": whole("p", "a"), "rejected": [assistant("b")]});
    assert_says(&error(json!({"template": "chatml"}), record), &["`chosen`"]);
    let record = json!({"chosen": whole("p", "a"), "rejected": [assistant("b")]});
    assert_says(
        &error(json!({"template": "chatml"}), record),
        &["no question in `rejected`"],
    );
}

#[test]
fn a_prompt_of_several_lines_that_whole_texts_begin_with_counts_once() {
    let plain = collator(json!({}));
    let prompt = "\n\nHuman: Hi\n\nAssistant:";
    let record = json!({"prompt": prompt, "chosen": format!("{prompt} Yes"), "rejected": format!("{prompt} No")});
    let [[text, _], _] = texts(&plain, &record, 64);
    assert_eq!(text.matches("Human").count(), 1, "{text}");
    // An echo is an answer.
    let record = json!({"prompt": "Hi", "chosen": "Hi you", "rejected": "Hi"});
    assert!(answers(&plain, &record)[0].contains("Hi you"));
}

#[test]
fn a_pair_whose_answers_are_the_same_is_left_out_and_counted() {
    let turns = |answer: &str| json!([user("p"), assistant(answer)]);
    for (template, same) in [
        (
            Value::Null,
            json!({"prompt": "p", "chosen": "same", "rejected": "same"}),
        ),
        (
            Value::Null,
            json!({"prompt": "p", "chosen": "same", "rejected": "same<|im_end|>\n"}),
        ),
        (
            Value::Null,
            json!({"chosen": "One two", "rejected": "One two"}),
        ),
        (
            json!("chatml"),
            json!({"prompt": "p", "chosen": "same", "rejected": "same"}),
        ),
        (
            json!("chatml"),
            json!({"chosen": turns("same"), "rejected": turns("same")}),
        ),
    ] {
        let other = json!({"prompt": "p", "chosen": "so", "rejected": "no"});
        let skipping = collator(json!({"template": template}));
        let (made, left_out) = batch(&skipping, &[same.clone(), other], 64).unwrap();
        assert_eq!(
            (made.map(|it| it.num_targets > 0), left_out.rows),
            (Some(true), 1),
            "{same}"
        );
        let said = error(json!({"template": template, "on_no_target": "error"}), same);
        assert_says(&said, &["on_no_target"]);
    }
}
