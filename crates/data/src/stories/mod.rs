//! The data set `stories`: short English stories, sums and look-ups, made by the program, without end.
//!
//! Row `i` is a pure function of (`seed`, split, `i`). The run's own seed decides the order only, so
//! the validation split is the same for every run.
//!
//! **No leak.** What a row is about is its *subject*: hero, place and object of a story; each sum;
//! the whole list and question of a look-up. A hash of the subject alone, the same for every seed,
//! reserves one in sixteen for validation. A row is drawn again until its subject is on its side,
//! so no subject, and hence no row, is in both splits.

mod cast;
mod pairs;
mod plots;
mod tasks;
mod words;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::cast::{Cast, Leads};
pub(crate) use self::pairs::StoriesPairs;
pub use self::pairs::StoriesPairsConfig;
use self::plots::{OPENINGS, PLOTS};
use self::tasks::{LookUp, Sum};
use crate::config::{DataConfig, typed_kwargs};
use crate::error::DataError;
use crate::location::Location;
use crate::mix::{Rng, mix_all};
use crate::row::Row;
use crate::source::{Dataset, Source};

/// `data.dataset.kwargs` of `stories`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoriesConfig {
    /// Which stories there are. The order in which a run reads them follows the run's seed.
    pub seed: u64,
}

const SUMS_PER_ROW: usize = 4;
const RESERVED_ONE_IN: u64 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Split {
    Train,
    Validation,
}

pub(crate) struct Stories {
    seed: u64,
    split: Split,
}

/// What a row is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Subject {
    Story(Leads),
    Sum(Sum),
    LookUp(LookUp),
}

impl Subject {
    fn split(&self) -> Split {
        let hash = match self {
            Self::Story(leads) => mix_all(&[
                0,
                leads.hero as u64,
                leads.place as u64,
                leads.object as u64,
            ]),
            Self::Sum(sum) => mix_all(&[1, u64::from(sum.plus), sum.left, sum.right]),
            Self::LookUp(look_up) => {
                let entries = look_up
                    .entries
                    .iter()
                    .flat_map(|&(k, o)| [k as u64, o as u64]);
                let head = [2, u64::from(look_up.people), look_up.asked as u64];
                mix_all(&head.into_iter().chain(entries).collect::<Vec<_>>())
            }
        };
        if hash.is_multiple_of(RESERVED_ONE_IN) {
            Split::Validation
        } else {
            Split::Train
        }
    }
}

impl Stories {
    pub(crate) fn open(config: &DataConfig) -> Result<Dataset, DataError> {
        let StoriesConfig { seed } = typed_kwargs("data.dataset.kwargs", &config.dataset.kwargs)?;
        let split = |split| Arc::new(Self { seed, split });
        Ok(Dataset {
            train: split(Split::Train),
            validation: split(Split::Validation),
            fingerprint: format!("stories, seed {seed}"),
        })
    }

    /// Writes row `index` and gives its subjects.
    fn write(&self, index: u64, text: &mut String) -> Vec<Subject> {
        let mut rng = Rng::new(&[self.seed, self.split as u64, index]);
        match rng.below(100) {
            0..84 => {
                let leads = self.draw(&mut rng, Leads::draw, Subject::Story);
                let cast = Cast::draw(leads, &mut rng);
                cast.tell(rng.pick(OPENINGS), text);
                for beat in rng.pick(PLOTS) {
                    text.push(' ');
                    cast.tell(rng.pick(beat), text);
                }
                vec![Subject::Story(leads)]
            }
            84..92 => {
                let mut subjects = Vec::with_capacity(SUMS_PER_ROW);
                for i in 0..SUMS_PER_ROW {
                    let sum = self.draw(&mut rng, Sum::draw, Subject::Sum);
                    if i > 0 {
                        text.push('\n');
                    }
                    sum.tell(text);
                    subjects.push(Subject::Sum(sum));
                }
                subjects
            }
            _ => {
                let look_up = self.draw(&mut rng, LookUp::draw, Subject::LookUp);
                look_up.tell(text);
                vec![Subject::LookUp(look_up)]
            }
        }
    }

    /// Draws until the subject is on this side.
    fn draw<T: Clone>(
        &self,
        rng: &mut Rng,
        draw: impl Fn(&mut Rng) -> T,
        subject: impl Fn(T) -> Subject,
    ) -> T {
        loop {
            let drawn = draw(rng);
            if subject(drawn.clone()).split() == self.split {
                return drawn;
            }
        }
    }
}

impl Source for Stories {
    fn num_rows(&self) -> Option<u64> {
        None
    }

    fn read(&self, index: u64, row: &mut Row) -> Result<(), DataError> {
        row.at = Location::Generated {
            source: "stories",
            index,
        };
        self.write(index, row.text_mut("text"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn rows(seed: u64, split: Split, len: u64) -> (HashSet<String>, HashSet<Subject>) {
        let stories = Stories { seed, split };
        let mut texts = HashSet::new();
        let mut subjects = HashSet::new();
        for index in 0..len {
            let mut text = String::new();
            subjects.extend(stories.write(index, &mut text));
            texts.insert(text);
        }
        (texts, subjects)
    }

    #[test]
    fn no_subject_and_no_row_is_in_both_splits() {
        let (train_texts, train_subjects) = rows(0, Split::Train, 50_000);
        let (texts, subjects) = rows(0, Split::Validation, 5_000);
        assert!(subjects.is_disjoint(&train_subjects));
        assert!(texts.is_disjoint(&train_texts));
        // Whatever the seed: the sides are those of the subject itself.
        let (other_texts, other_subjects) = rows(1, Split::Train, 10_000);
        assert!(subjects.is_disjoint(&other_subjects));
        assert!(texts.is_disjoint(&other_texts));
    }

    #[test]
    fn every_story_and_sum_is_on_one_side_and_one_in_sixteen_is_reserved() {
        let mut reserved = 0;
        let mut all = 0;
        for hero in 0..words::NAMES.len() {
            for place in 0..words::PLACES.len() {
                for object in 0..words::OBJECTS.len() {
                    let leads = Leads {
                        hero,
                        place,
                        object,
                    };
                    reserved += u32::from(Subject::Story(leads).split() == Split::Validation);
                    all += 1;
                }
            }
        }
        let part = f64::from(reserved) / f64::from(all);
        assert!((part - 1.0 / 16.0).abs() < 0.01, "{part}");
    }

    #[test]
    fn rows_hardly_ever_repeat() {
        let (texts, _) = rows(0, Split::Train, 50_000);
        assert!(texts.len() > 49_990, "{} of 50,000 differ", texts.len());
    }

    #[test]
    fn rows_are_a_function_of_seed_split_and_index() {
        let write = |seed, split, index| {
            let mut text = String::new();
            Stories { seed, split }.write(index, &mut text);
            text
        };
        assert_eq!(write(3, Split::Train, 5), write(3, Split::Train, 5));
        assert_ne!(write(3, Split::Train, 5), write(4, Split::Train, 5));
        assert_ne!(write(3, Split::Train, 5), write(3, Split::Train, 6));
        assert_ne!(write(3, Split::Train, 5), write(3, Split::Validation, 5));
    }

    #[test]
    fn sums_are_right() {
        let (texts, _) = rows(0, Split::Train, 2_000);
        let mut num_sums = 0;
        for line in texts
            .iter()
            .flat_map(|text| text.lines())
            .filter(|line| line.contains(" = "))
        {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |i: usize| words[i].parse::<i64>().unwrap();
            let right = if words[1] == "+" {
                number(2)
            } else {
                -number(2)
            };
            assert_eq!(number(0) + right, number(4), "{line}");
            num_sums += 1;
        }
        assert!(num_sums > 400, "{num_sums}");
    }

    #[test]
    fn look_ups_are_answered_by_the_list() {
        let (texts, _) = rows(0, Split::Train, 2_000);
        let mut num_look_ups = 0;
        let is_look_up = |text: &&String| text.contains(" have? ") || text.contains(" hold? ");
        for text in texts.iter().filter(is_look_up) {
            let (list, question) = text.split_once("What does ").unwrap();
            let (_, answer) = question.split_once("? ").unwrap();
            assert!(list.contains(answer), "{text}");
            assert_eq!(list.matches(answer).count(), 1, "{text}");
            num_look_ups += 1;
        }
        assert!(num_look_ups > 100, "{num_look_ups}");
    }
}
