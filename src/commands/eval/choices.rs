//! Multiple-choice questions answered by log-likelihood: the choice that the model finds the likeliest after what is asked.
//!
//! Tokens are those of the text as a whole: blanks at the end of what is asked belong to the choice, and a choice's tokens are
//! those of both together that come after as many as what is asked has by itself. Where a token spans the two and nothing is
//! left of the choice, it is encoded by itself. What is empty is asked by the token that documents begin with, else by the one
//! that ends them. What is too long for the model loses its beginning.
//! Source: `TemplateLM._encode_pair` and `loglikelihood` of EleutherAI's lm-evaluation-harness, whose `acc`, `acc_norm` (by
//! characters of the choice) and `acc_bytes` (by its bytes of UTF-8) these are.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tt_data::Tokenizer;
use tt_engine::{Request, score};

use super::config::EvalConfig;
use super::question::{self, Question};
use super::subject::Subject;
use crate::failure::Failure;

/// Tokens of a row, to reckon how many requests make a batch.
const TOKENS_PER_ROW: usize = 256;

/// How the questions of a file were answered.
pub(super) struct Answered {
    task: String,
    questions: usize,
    /// Shares of the questions: by the log-likelihood, by it over the characters and over the bytes of the choice.
    accuracy: f64,
    by_characters: f64,
    by_bytes: f64,
    /// Choices, not questions, before which the question lost its beginning.
    truncated: usize,
    /// Of each question.
    details: Vec<Value>,
}

pub(super) fn answer(
    file: &str,
    questions: &[Question],
    config: &EvalConfig,
    subject: &Subject,
    tokenizer: &Tokenizer,
) -> Result<Answered, Failure> {
    let stored = &subject.stored;
    let start = match config.add_special_tokens {
        true => tokenizer.document_start(),
        false => &[],
    };
    let asking = Asking {
        tokenizer,
        start,
        delimiter: &config.delimiter,
        longest: stored.model.max_positions(),
    };
    let (mut requests, mut truncated) = (Vec::new(), 0);
    for question in questions {
        for choice in &question.choices {
            let made = asking.request(&question.asked, choice);
            let made = made.with_context(|| format!("{file}:{}", question.line));
            let (request, is_cut) = made.map_err(Failure::Request)?;
            truncated += usize::from(is_cut);
            requests.push(request);
        }
    }
    let batch_tokens = subject.micro_batch_size * TOKENS_PER_ROW;
    let scores = score(
        &*stored.model,
        &stored.params,
        subject.precision,
        &requests,
        batch_tokens,
    );
    let scores = scores.map_err(|error| match error {
        tt_engine::Error::CannotScore => Failure::request(error),
        error => Failure::run(error),
    })?;
    let mut rest = &scores[..];
    let (mut right, mut details) = ([0usize; 3], Vec::new());
    for question in questions {
        let (own, after) = rest.split_at(question.choices.len());
        rest = after;
        details.push(json!({
            "task": task_name(file),
            "line": question.line,
            "log_likelihoods": own,
            "right": question.right,
        }));
        let lengths: [&dyn Fn(&str) -> usize; 3] =
            [&|_| 1, &|choice| choice.chars().count(), &str::len];
        for (right, length) in right.iter_mut().zip(lengths) {
            let choices = own.iter().zip(&question.choices);
            let likely = choices.map(|(score, choice)| score / length(choice) as f64);
            *right += usize::from(first_greatest(likely) == Some(question.right));
        }
    }
    let share = |right: usize| right as f64 / questions.len() as f64;
    Ok(Answered {
        task: task_name(file),
        questions: questions.len(),
        accuracy: share(right[0]),
        by_characters: share(right[1]),
        by_bytes: share(right[2]),
        truncated,
        details,
    })
}

/// An object a line for each question.
pub(super) fn details(answered: &[Answered]) -> String {
    let lines = answered.iter().flat_map(|it| &it.details);
    lines.map(|line| format!("{line}\n")).collect()
}

/// Reads all files before a model is loaded.
pub(super) fn read(config: &EvalConfig) -> anyhow::Result<Vec<(String, Vec<Question>)>> {
    let files = config.tasks.iter();
    let read = files.map(|file| {
        let prompt = config.prompt.as_deref();
        let questions = question::read(Path::new(file), prompt, config.max_questions)?;
        Ok((file.clone(), questions))
    });
    read.collect()
}

/// How a question becomes tokens.
struct Asking<'a> {
    tokenizer: &'a Tokenizer,
    /// What begins a text.
    start: &'a [u32],
    delimiter: &'a str,
    /// Tokens that the model reads.
    longest: usize,
}

impl Asking<'_> {
    /// The tokens of a choice after what is asked, and whether the beginning of that was cut off.
    fn request(&self, asked: &str, choice: &str) -> anyhow::Result<(Request, bool)> {
        let context = asked.trim_end();
        let blanks = &asked[context.len()..];
        let choice = format!("{blanks}{}{choice}", self.delimiter);
        let before = self.tokenizer.encode(context)?;
        let whole = self.tokenizer.encode(&format!("{context}{choice}"))?;
        // What is asked may bring it.
        let mut ids = match before.starts_with(self.start) {
            true => Vec::new(),
            false => self.start.to_vec(),
        };
        if ids.is_empty() && before.is_empty() {
            ids.push(self.tokenizer.eos_id());
        }
        let scored = match whole.len().checked_sub(before.len()) {
            Some(scored) if scored > 0 => {
                ids.extend(&whole);
                scored
            }
            _ => {
                let own = self.tokenizer.encode(&choice)?;
                ids.extend(&before);
                ids.extend(&own);
                own.len()
            }
        };
        if scored == 0 {
            bail!("the tokenizer makes nothing of the choice {choice:?}");
        }
        if scored > self.longest {
            let longest = self.longest;
            bail!("a choice has {scored} tokens, and the model reads {longest}");
        }
        // The last token is predicted and not read.
        let too_many = (ids.len() - 1).saturating_sub(self.longest);
        ids.drain(..too_many);
        Ok((Request { ids, scored }, too_many > 0))
    }
}

fn first_greatest(values: impl Iterator<Item = f64>) -> Option<usize> {
    let mut greatest: Option<(usize, f64)> = None;
    for (index, value) in values.enumerate() {
        if greatest.is_none_or(|(_, so_far)| value > so_far) {
            greatest = Some((index, value));
        }
    }
    greatest.map(|(index, _)| index)
}

/// A file's name without its ending.
fn task_name(file: &str) -> String {
    let name = Path::new(file).file_stem();
    name.map_or_else(|| file.to_owned(), |it| it.to_string_lossy().into_owned())
}

impl Answered {
    pub(super) const HEAD: [&str; 7] = [
        "task",
        "questions",
        "acc",
        "±",
        "acc_norm",
        "acc_bytes",
        "truncated",
    ];

    /// As [`Answered::HEAD`] has it.
    pub(super) fn cells(&self) -> [String; 7] {
        let share = |share: f64| format!("{share:.4}");
        [
            self.task.clone(),
            self.questions.to_string(),
            share(self.accuracy),
            self.standard_error().map_or_else(|| "-".to_owned(), share),
            share(self.by_characters),
            share(self.by_bytes),
            self.truncated.to_string(),
        ]
    }

    /// Of the accuracy, by the sample's variance.
    fn standard_error(&self) -> Option<f64> {
        let p = self.accuracy;
        (self.questions > 1).then(|| (p * (1.0 - p) / (self.questions - 1) as f64).sqrt())
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "task": self.task,
            "questions": self.questions,
            "acc": self.accuracy,
            "acc_stderr": self.standard_error(),
            "acc_norm": self.by_characters,
            "acc_bytes": self.by_bytes,
            "truncated": self.truncated,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "a", "b", "c", a blank, and as one token " c" and "ab".
    fn tokenizer() -> Tokenizer {
        let vocab = json!({"a": 0, "b": 1, "c": 2, "Ġ": 3, "Ġc": 4, "ab": 5, "<|endoftext|>": 6});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [{"id": 6, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true}],
            "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": [["Ġ", "c"], ["a", "b"]]},
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        std::fs::write(&file, tokenizer.to_string()).unwrap();
        Tokenizer::load(&file, None).unwrap()
    }

    #[track_caller]
    fn asked(
        delimiter: &str,
        longest: usize,
        asked: &str,
        choice: &str,
    ) -> (Vec<u32>, usize, bool) {
        let tokenizer = tokenizer();
        let asking = Asking {
            tokenizer: &tokenizer,
            start: &[],
            delimiter,
            longest,
        };
        let (Request { ids, scored }, is_cut) = asking.request(asked, choice).unwrap();
        (ids, scored, is_cut)
    }

    #[test]
    fn a_blank_at_the_boundary_is_the_choices() {
        let expected = (vec![0, 4], 1, false);
        assert_eq!(asked(" ", 9, "a", "c"), expected);
        assert_eq!(asked("", 9, "a ", "c"), expected);
        assert_eq!(asked("", 9, "a", " c"), expected);
    }

    /// EleutherAI/lm-evaluation-harness 1053, 1297, 3336: `assert len(continuation_enc) > 0`.
    #[test]
    fn a_token_that_spans_the_boundary_leaves_the_choice_its_own() {
        assert_eq!(asked("", 9, "a", "b"), (vec![0, 1], 1, false));
        // As there, tokens are counted and not compared.
        assert_eq!(asked("", 9, "a", "bc"), (vec![5, 2], 1, false));
    }

    #[test]
    fn nothing_is_asked_by_the_end_of_a_text() {
        assert_eq!(asked("", 9, "", "ab"), (vec![6, 5], 1, false));
        assert_eq!(asked("", 9, " ", "c"), (vec![6, 4], 1, false));
    }

    #[test]
    fn a_question_that_brings_what_begins_a_text_has_it_once() {
        let tokenizer = tokenizer();
        let asking = Asking {
            tokenizer: &tokenizer,
            start: &[5],
            delimiter: "",
            longest: 9,
        };
        let ids = |asked| asking.request(asked, "c").unwrap().0.ids;
        let begins = tokenizer.token(5).unwrap();
        assert_eq!(ids("a"), [5, 0, 2]);
        assert_eq!(ids(&format!("{begins}a")), [5, 0, 2]);
    }

    #[test]
    fn what_is_too_long_loses_its_beginning() {
        // Of "c a b c c" the last is predicted and not read.
        assert_eq!(asked("", 4, "ccabc", "c"), (vec![2, 2, 5, 2, 2], 1, false));
        assert_eq!(asked("", 3, "ccabc", "c"), (vec![2, 5, 2, 2], 1, true));
        assert_eq!(asked("", 2, "ccabc", "cc"), (vec![2, 2, 2], 2, true));
        let tokenizer = tokenizer();
        let asking = Asking {
            tokenizer: &tokenizer,
            start: &[],
            delimiter: "",
            longest: 2,
        };
        let error = asking.request("a", "ccc").unwrap_err().to_string();
        assert_eq!(error, "a choice has 3 tokens, and the model reads 2");
    }

    #[test]
    fn of_equal_choices_the_first_is_chosen() {
        assert_eq!(first_greatest([-2.0, -1.0, -1.0].into_iter()), Some(1));
    }
}
