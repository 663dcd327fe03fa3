//! Small tasks with one right answer: sums, and finding a value in a list.

use std::fmt::Write;

use super::words::{ADJECTIVES, NAMES, OBJECTS};
use crate::mix::Rng;

/// `left + right` or `left - right`, none under zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Sum {
    pub(super) plus: bool,
    pub(super) left: u64,
    pub(super) right: u64,
}

impl Sum {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let (a, b) = (rng.below(50), rng.below(50));
        let plus = rng.below(2) == 0;
        let (left, right) = if plus { (a, b) } else { (a.max(b), a.min(b)) };
        Self { plus, left, right }
    }

    /// Appends such as `12 + 7 = 19`.
    pub(super) fn tell(&self, text: &mut String) {
        let Self { plus, left, right } = self;
        let (sign, result) = if *plus {
            ('+', left + right)
        } else {
            ('-', left - right)
        };
        write!(text, "{left} {sign} {right} = {result}").expect("a string takes all");
    }
}

/// A list of who or what holds which object, and a question about one of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LookUp {
    /// Whether keys are names of people, else colors of boxes.
    pub(super) people: bool,
    /// Key and object, each by its number in its table.
    pub(super) entries: Vec<(usize, usize)>,
    pub(super) asked: usize,
}

impl LookUp {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let people = rng.below(2) == 0;
        let num_keys = if people {
            NAMES.len()
        } else {
            ADJECTIVES.len()
        };
        let len = 3 + rng.index(3);
        let keys = distinct(len, num_keys, rng);
        let objects = distinct(len, OBJECTS.len(), rng);
        Self {
            people,
            entries: keys.into_iter().zip(objects).collect(),
            asked: rng.index(len),
        }
    }

    /// Appends the list, the question and the answer.
    pub(super) fn tell(&self, text: &mut String) {
        self.ask(text);
        self.answer(self.entries[self.asked].1, text);
    }

    /// Appends the list and the question.
    pub(super) fn ask(&self, text: &mut String) {
        for &(key, object) in &self.entries {
            self.state(key, object, text);
            text.push(' ');
        }
        let (key, _) = self.entries[self.asked];
        let told = if self.people {
            write!(text, "What does {} have?", NAMES[key].name)
        } else {
            write!(text, "What does the {} box hold?", ADJECTIVES[key])
        };
        told.expect("a string takes all");
    }

    /// Appends a blank and an answer: that what is asked about has `object`.
    pub(super) fn answer(&self, object: usize, text: &mut String) {
        let (key, _) = self.entries[self.asked];
        text.push(' ');
        self.state(key, object, text);
    }

    fn state(&self, key: usize, object: usize, text: &mut String) {
        let object = OBJECTS[object].noun;
        let told = if self.people {
            write!(text, "{} has a {object}.", NAMES[key].name)
        } else {
            write!(text, "The {} box holds a {object}.", ADJECTIVES[key])
        };
        told.expect("a string takes all");
    }
}

/// `len` different numbers under `bound`.
fn distinct(len: usize, bound: usize, rng: &mut Rng) -> Vec<usize> {
    let mut numbers = Vec::with_capacity(len);
    while numbers.len() < len {
        let number = rng.index(bound);
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    numbers
}
