//! The data set `stories_pairs`: look-ups of `stories` with a right answer and a wrong one, to learn a preference from.
//!
//! A row has `prompt` (list and question), `chosen` (what the list says) and `rejected` (another object). What row `i` is, and
//! on which side of the split its look-up is, follows `stories`: no look-up of validation is trained on, there or here.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::tasks::LookUp;
use super::words::OBJECTS;
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
    /// What wrong answers say.
    pub wrong: Wrong,
}

/// What the wrong answers of look-ups say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wrong {
    /// An object that is not in the list: who sees what is there can tell.
    #[default]
    Unlisted,
    /// What the list says of another: only who looks up can tell, which takes far longer to learn.
    Listed,
}

impl Default for StoriesPairsConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            num_pairs: 16_384,
            wrong: Wrong::default(),
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
    wrong: Wrong,
}

impl StoriesPairs {
    pub(crate) fn open(config: &DataConfig) -> Result<Dataset, DataError> {
        let StoriesPairsConfig {
            seed,
            num_pairs,
            wrong,
        } = typed_kwargs("data.dataset.kwargs", &config.dataset.kwargs)?;
        let of = |split, num_pairs| {
            let stories = Stories { seed, split };
            Arc::new(Self {
                stories,
                num_pairs,
                wrong,
            })
        };
        Ok(Dataset {
            train: of(Split::Train, num_pairs),
            validation: of(Split::Validation, NUM_VALIDATION_PAIRS),
            fingerprint: format!("stories_pairs, seed {seed}, {num_pairs} pairs, wrong {wrong:?}"),
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
        let (_, right) = look_up.entries[look_up.asked];
        let wrong = self.wrong.object(&look_up, &mut rng);
        look_up.ask(row.text_mut("prompt"));
        look_up.answer(right, row.text_mut("chosen"));
        look_up.answer(wrong, row.text_mut("rejected"));
        Ok(())
    }
}

impl Wrong {
    /// The number of an object.
    fn object(self, look_up: &LookUp, rng: &mut Rng) -> usize {
        let entries = &look_up.entries;
        match self {
            Self::Unlisted => loop {
                let drawn = rng.index(OBJECTS.len());
                if entries.iter().all(|&(_, object)| object != drawn) {
                    return drawn;
                }
            },
            Self::Listed => {
                let other = look_up.asked + 1 + rng.index(entries.len() - 1);
                entries[other % entries.len()].1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_look_ups_with_the_right_answer_and_a_wrong_one() {
        for (split, wrong) in [
            (Split::Train, Wrong::Unlisted),
            (Split::Validation, Wrong::Unlisted),
            (Split::Train, Wrong::Listed),
            (Split::Validation, Wrong::Listed),
        ] {
            let pairs = StoriesPairs {
                stories: Stories { seed: 3, split },
                num_pairs: 200,
                wrong,
            };
            let (mut row, mut again) = (Row::default(), Row::default());
            for index in 0..200 {
                pairs.read(index, &mut row).unwrap();
                let [prompt, chosen, rejected] =
                    ["prompt", "chosen", "rejected"].map(|name| row.text(name).unwrap());
                let said = |answer: &str| {
                    let (what, object) = answer.rsplit_once(' ').unwrap();
                    (what.to_owned(), object.to_owned())
                };
                assert_eq!(said(chosen).0, said(rejected).0);
                assert_ne!(said(chosen).1, said(rejected).1);
                assert!(prompt.ends_with('?'), "{prompt}");
                let listed = prompt.contains(&said(rejected).1);
                assert_eq!(listed, wrong == Wrong::Listed, "{prompt}{rejected}");
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
