//! `docs/configuration.md`: an introduction written by hand, and below [`MARKER`] the generated tables.

use serde_json::{Map, Value};
use tpu_train::reference::{EMBEDDED, schema};
use tt_config::Node;
use tt_report::{Column, Table};

use crate::choices::{Choice, choices};
use crate::defaults::{BASE, Defaults};
use crate::rows::{Row, code, one_line, rows};

/// What stands above this line is written by hand and kept.
const MARKER: &str =
    "<!-- Everything below is generated from the typed configs: cargo xtask docs -->";

/// The whole page; `page` is what it holds now.
pub(crate) fn text(page: &str, defaults: &Defaults) -> String {
    let introduction = page.split(MARKER).next().unwrap_or_default().trim_end();
    let sections = [
        introduction.to_owned(),
        MARKER.to_owned(),
        options(defaults),
        keys(defaults),
    ];
    sections.join("\n\n") + "\n"
}

/// Every option of every group, with its file and what it says of itself.
fn options(defaults: &Defaults) -> String {
    let mut text = String::from("## Groups and their options\n\n");
    text += "Choose with `group=option`. What is chosen if nothing is said is marked with *.\n\n";
    let mut table = Table::new([Column::left(); 3]);
    table.row(["Group", "Option", "What it is"]);
    for (group, options) in &defaults.groups {
        let chosen = defaults.base.choices().get(group).and_then(Option::as_ref);
        let is_asked_for = BASE.iter().any(|choice| choice.starts_with(group.as_str()));
        for option in options {
            let mark = if chosen == Some(option) && !is_asked_for {
                " *"
            } else {
                ""
            };
            let stem = format!("{group}/{option}.");
            let (file, content) = EMBEDDED
                .iter()
                .find(|(file, _)| file.starts_with(&stem))
                .expect("an option is a file");
            table.row([
                code(group),
                format!("[`{option}`](../configs/{file}){mark}"),
                about(content),
            ]);
        }
    }
    text + &table.markdown()
}

/// The comment that a file opens with.
fn about(content: &str) -> String {
    let lines = content.lines().map_while(|line| line.strip_prefix('#'));
    let words = lines.filter(|line| !line.trim_start().starts_with("@package"));
    one_line(&words.collect::<Vec<_>>().join(" "))
}

/// All keys: those of the root, then group by group, each followed by its plug-ins.
fn keys(defaults: &Defaults) -> String {
    let schema = schema().to_value();
    let choices = choices();
    // Where a plug-in's own config stands, its keys are listed instead of the mapping.
    let is_open = |key: &str| choices.iter().any(|choice| choice.section == key);
    let all: Vec<Row> = rows(&schema, "")
        .into_iter()
        .filter(|row| !is_open(&row.key))
        .collect();
    let of_base = |row: &Row| defaults.base.get(&row.key).map(Node::to_json);

    let mut text = String::from("## Keys\n\n");
    text += &format!(
        "The defaults are those of `tpu-train {}`; the optimizer, data set or collator you choose \
         brings its own.\n\n### The root\n\n",
        BASE.join(" ")
    );
    let root = all.iter().filter(|row| !row.key.contains('.'));
    text += &table(root, of_base);
    for name in schema["properties"]
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
    {
        let prefix = format!("{name}.");
        let own: Vec<&Row> = all
            .iter()
            .filter(|row| row.key.starts_with(&prefix))
            .collect();
        let plugins: Vec<&Choice> = choices
            .iter()
            .filter(|c| c.key.starts_with(&prefix))
            .collect();
        if own.is_empty() && plugins.is_empty() {
            continue; // a value of the root
        }
        text += &format!("\n### `{name}`\n");
        if !own.is_empty() {
            text += "\n";
            text += &table(own.into_iter(), of_base);
        }
        for choice in plugins {
            text += &plugin(defaults, choice);
        }
    }
    text.trim_end().to_owned()
}

fn plugin(defaults: &Defaults, choice: &Choice) -> String {
    let Choice {
        kind,
        key,
        name,
        about,
        section,
        schema,
    } = choice;
    let mut text = format!("\n#### The {kind} `{name}`\n\n");
    text += &format!("{}. Chosen by `{key}: {name}`.\n\n", capitalised(about));
    let rows = rows(schema.as_value(), section);
    text += &table(rows.iter(), |row| {
        defaults.under(choice, &row.key).map(Node::to_json)
    });
    text
}

/// `given` tells what the configuration files say; where they say nothing, the type decides.
fn table<'r>(rows: impl Iterator<Item = &'r Row>, given: impl Fn(&Row) -> Option<Value>) -> String {
    let mut table = Table::new([Column::left(); 5]);
    table.row(["Key", "Type", "Default", "Range", "Meaning"]);
    for row in rows {
        let default = match given(row).or_else(|| row.default.clone()) {
            Some(Value::String(text)) if text == tt_config::MISSING => "must be given".to_owned(),
            Some(Value::String(text)) => code(&text),
            Some(value) => code(&value.to_string()),
            None => "must be given".to_owned(),
        };
        table.row([
            &code(&row.key),
            &row.kind,
            &default,
            &row.range,
            &row.meaning,
        ]);
    }
    table.markdown() + "\n"
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters.clone()).collect()
}

#[test]
fn every_key_says_what_it_means() {
    let schema = schema().to_value();
    let own = choices();
    let own = own.iter().map(|c| rows(c.schema.as_value(), c.section));
    let all: Vec<Row> = rows(&schema, "").into_iter().chain(own.flatten()).collect();
    assert!(all.len() > 50, "{} keys", all.len());
    for row in all {
        assert!(row.meaning.len() > 5, "{} is not documented", row.key);
    }
}

#[test]
fn the_opening_comment_of_a_file_describes_it() {
    let content = "# @package model\n# Small,\n# and quick.\nsize: 1 # of one\n# Later.\n";
    assert_eq!(about(content), "Small, and quick.");
}
