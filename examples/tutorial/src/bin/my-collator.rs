//! `my-collator +model=qwen2 +trainer=lm data=answers`: what comes first in a text is a prompt, which is not learned.

use std::{process::ExitCode, sync::Arc};

use tpu_train::collators::{BuildCollator, Collator, Examples, Layout};
use tpu_train::data::{DataError, Row, Tokenizer, typed_kwargs};
use tpu_train::{App, Entry};

/// `data.collator.kwargs`.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// What ends the prompt.
    prompt_end: String,
}

struct Answers {
    config: Config,
    tokenizer: Arc<Tokenizer>,
}

impl Collator for Answers {
    fn layout(&self) -> Layout {
        Layout::Padded // an example a row; Packed fills rows to the last token
    }

    fn encode(&self, row: &Row, examples: &mut Examples) -> Result<(), DataError> {
        let text = row.text("text")?; // an error if the data has no such column
        let Some(at) = text.find(&self.config.prompt_end) else {
            return Ok(()); // no answer, no example
        };
        let (prompt, answer) = text.split_at(at + self.config.prompt_end.len());
        let example = examples.add();
        self.tokenizer.encode_into(prompt, &mut example.input_ids)?;
        example.label_none(); // of the tokens so far
        self.tokenizer.encode_into(answer, &mut example.input_ids)?;
        example.input_ids.push(self.tokenizer.eos_id());
        example.label_all(); // of those since
        Ok(())
    }
}

fn main() -> ExitCode {
    let build: BuildCollator = |kwargs, tokenizer| {
        let config: Config = typed_kwargs("data.collator.kwargs", kwargs)?;
        if config.prompt_end.is_empty() {
            let key = "data.collator.kwargs.prompt_end";
            let message = "must not be empty".to_owned();
            return Err(DataError::BadValue { key, message });
        }
        Ok(Box::new(Answers {
            config,
            tokenizer: Arc::clone(tokenizer),
        }))
    };
    let entry = Entry::new::<Config>("answers.Answers", "learns what answers a prompt", build);
    const YAML: &str = "{defaults: [base, _self_], dataset: {url: stories, kwargs: {seed: 0}},
      collator: {type: answers.Answers, kwargs: {prompt_end: '. '}}}";
    let app = App::new()
        .with_collator(entry)
        .with_configs(&[("data/answers.yaml", YAML)]);
    app.run(std::env::args_os().skip(1))
}
