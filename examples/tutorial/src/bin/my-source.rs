//! `my-source +model=qwen2 +trainer=lm data=squares`: a data set that is computed.

use std::{process::ExitCode, sync::Arc};

use tpu_train::data::{DataError, Dataset, Location, OpenSource, Row, Source, typed_kwargs};
use tpu_train::{App, Entry};

/// `data.dataset.kwargs`.
#[derive(Clone, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Squares {
    /// The first number that is left for validation.
    up_to: u64,
    #[serde(skip)]
    first: u64,
}

impl Source for Squares {
    fn num_rows(&self) -> Option<u64> {
        Some(self.up_to)
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        let n = self.first + index;
        row.at = Location::Generated {
            source: "squares",
            index: n,
        }; // for messages
        let text = format!("The square of {n} is {}.", n * n);
        row.text_mut("text").push_str(&text);
        Ok(())
    }
}

fn main() -> ExitCode {
    let open: OpenSource = |data| {
        let train: Squares = typed_kwargs("data.dataset.kwargs", &data.dataset.kwargs)?;
        let validation = Squares {
            first: train.up_to,
            up_to: 100,
        };
        Ok(Dataset {
            fingerprint: format!("squares up to {}", train.up_to), // what a resume compares
            train: Arc::new(train),
            validation: Arc::new(validation),
        })
    };
    let entry = Entry::new::<Squares>("squares", "squares of numbers", open);
    const YAML: &str = "{defaults: [base, _self_], dataset: {url: squares, kwargs: {up_to: 5000}}}";
    let app = App::new()
        .with_source(entry)
        .with_configs(&[("data/squares.yaml", YAML)]);
    app.run(std::env::args_os().skip(1))
}
