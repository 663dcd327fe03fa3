//! The data set `stories_pairs`: look-ups of `stories` with a right answer and a wrong one, to learn a preference from.
//!
//! A row has `prompt` (list and question), `chosen` (what the list says) and `rejected` (what it says of another). What row `i`
//! is, and on which side of the split its look-up is, follows `stories`: no look-up of validation is trained on, there or here.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tasks::LookUp;
use super::{Split, Stories, Subject};
use crate::config::{DataConfig, typed_kwargs};
use crate::error::DataError;
use crate::location::Location;
use crate::mix::Rng;
use crate::row::Row;
use crate::source::{Dataset, Source};

/// `data.dataset.kwargs` of `stories_pairs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoriesPairsConfig {
    /// Which look-ups there are.
    pub seed: u64,
    /// Pairs to train on, an epoch of them.
    #[schemars(range(min = 1))]
    pub num_pairs: u64,
}

impl Default for StoriesPairsConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            num_pairs: 16_384,
        }
    }
}

/// Pairs of the validation split.
const NUM_VALIDATION_PAIRS: u64 = 512;
/// Keeps the draws apart from those of `stories`.
const STREAM: u64 = 0x7061_6972;

pub(crate) struct StoriesPairs {
    stories: Stories,
    num_pairs: u64,
}

impl StoriesPairs {
    pub(crate) fn open(config: &DataConfig) -> Result<Dataset, DataError> {
        let StoriesPairsConfig { seed, num_pairs } =
            typed_kwargs("data.dataset.kwargs", &config.dataset.kwargs)?;
        let of = |split, num_pairs| {
            let stories = Stories { seed, split };
            Arc::new(Self { stories, num_pairs })
        };
        Ok(Dataset {
            train: of(Split::Train, num_pairs),
            validation: of(Split::Validation, NUM_VALIDATION_PAIRS),
            fingerprint: format!("stories_pairs, seed {seed}, {num_pairs} pairs"),
        })
    }
}

impl Source for StoriesPairs {
    fn num_rows(&self) -> Option<u64> {
        Some(self.num_pairs)
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        row.at = Location::Generated {
            source: "stories_pairs",
            index,
        };
        let Stories { seed, split } = self.stories;
        let mut rng = Rng::new(&[seed, split as u64, STREAM, index]);
        let look_up = self.stories.draw(&mut rng, LookUp::draw, Subject::LookUp);
        let others = look_up.entries.len() - 1;
        let other = (look_up.asked + 1 + rng.index(others)) % look_up.entries.len();
        look_up.ask(row.text_mut("prompt"));
        look_up.answer(look_up.asked, row.text_mut("chosen"));
        look_up.answer(other, row.text_mut("rejected"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_look_ups_with_the_right_answer_and_another_of_the_list() {
        for split in [Split::Train, Split::Validation] {
            let stories = Stories { seed: 3, split };
            let pairs = StoriesPairs {
                stories,
                num_pairs: 200,
            };
            let (mut row, mut again) = (Row::default(), Row::default());
            for index in 0..200 {
                pairs.read(index, &mut row).unwrap();
                let [prompt, chosen, rejected] =
                    ["prompt", "chosen", "rejected"].map(|name| row.text(name).unwrap());
                let object = |answer: &str| answer.rsplit_once(' ').unwrap().1.to_owned();
                assert_ne!(object(chosen), object(rejected));
                assert!(
                    prompt.ends_with('?') && prompt.contains(&object(rejected)),
                    "{prompt}"
                );
                // What the list says of who is asked about, word for word.
                assert!(prompt.contains(chosen.trim_start()), "{prompt}{chosen}");
                assert!(
                    !prompt.contains(rejected.trim_start()),
                    "{prompt}{rejected}"
                );
                pairs.read(index, &mut again).unwrap();
                assert_eq!(again, row);
            }
        }
    }
}
