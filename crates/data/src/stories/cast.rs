//! Who and what a story is about, and how a sentence is filled in with it.

use super::words::{
    ADJECTIVES, FRIENDS, GIVERS, HEROES, NAMES, Name, OBJECTS, Object, PLACES, Place, TIMES,
};
use crate::mix::Rng;

/// The parts of a story that stay the same from its first sentence to its last.
pub(super) struct Cast {
    hero: &'static Name,
    friend: &'static Name,
    hero_kind: &'static str,
    friend_kind: &'static str,
    place: &'static Place,
    spot: &'static str,
    other_spot: &'static str,
    object: &'static Object,
    adjective: &'static str,
    time: &'static str,
    giver: &'static str,
}

/// The hero, the place and the object of a story, by their numbers in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Leads {
    pub(super) hero: usize,
    pub(super) place: usize,
    pub(super) object: usize,
}

impl Leads {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        Self {
            hero: rng.index(NAMES.len()),
            place: rng.index(PLACES.len()),
            object: rng.index(OBJECTS.len()),
        }
    }
}

impl Cast {
    /// Draws what the leads leave open.
    pub(super) fn draw(leads: Leads, rng: &mut Rng) -> Self {
        let other_name = 1 + rng.index(NAMES.len() - 1);
        let place = &PLACES[leads.place];
        let spot = rng.index(place.spots.len());
        let other_spot = (spot + 1 + rng.index(place.spots.len() - 1)) % place.spots.len();
        Self {
            hero: &NAMES[leads.hero],
            friend: &NAMES[(leads.hero + other_name) % NAMES.len()],
            hero_kind: rng.pick(HEROES),
            friend_kind: rng.pick(FRIENDS),
            place,
            spot: place.spots[spot],
            other_spot: place.spots[other_spot],
            object: &OBJECTS[leads.object],
            adjective: rng.pick(ADJECTIVES),
            time: rng.pick(TIMES),
            giver: rng.pick(GIVERS),
        }
    }

    /// Appends `sentence` with its `{slots}` filled in.
    pub(super) fn tell(&self, sentence: &str, text: &mut String) {
        let mut rest = sentence;
        while let Some((before, after)) = rest.split_once('{') {
            let (slot, after) = after.split_once('}').expect("a slot of our own is closed");
            text.push_str(before);
            self.fill(slot, text);
            rest = after;
        }
        text.push_str(rest);
    }

    fn fill(&self, slot: &str, text: &mut String) {
        let (hero, friend) = (self.hero.pronouns, self.friend.pronouns);
        text.push_str(match slot {
            "hero" => self.hero.name,
            "he" => hero.he,
            "him" => hero.him,
            "his" => hero.his,
            "He" => hero.he_capital,
            "His" => hero.his_capital,
            "hero_kind" => self.hero_kind,
            "friend" => self.friend.name,
            "friend_he" => friend.he,
            "friend_him" => friend.him,
            "friend_his" => friend.his,
            "friend_kind" => self.friend_kind,
            "place" => self.place.name,
            "spot" => self.spot,
            "other_spot" => self.other_spot,
            "noun" => self.object.noun,
            "verb" => self.object.verb,
            "past" => self.object.past,
            "part" => self.object.part,
            "adjective" => self.adjective,
            "time" => self.time,
            "giver" => self.giver,
            _ => unreachable!("no slot is called {slot}"),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::plots::{OPENINGS, PLOTS};
    use super::*;

    #[test]
    fn every_sentence_of_every_plot_can_be_told() {
        let mut rng = Rng::new(&[1]);
        let cast = Cast::draw(Leads::draw(&mut rng), &mut rng);
        let sentences = PLOTS.iter().copied().flatten().copied().flatten();
        for sentence in sentences.chain(OPENINGS) {
            let mut text = String::new();
            cast.tell(sentence, &mut text);
            assert!(!text.contains(['{', '}']), "{text}");
            assert!(text.ends_with(['.', '!', '?', '"']), "{text}");
            assert!(
                text.starts_with(|c: char| c.is_uppercase() || c == '"'),
                "{text}"
            );
        }
    }

    #[test]
    fn no_adjective_needs_an() {
        let needs_an = |word: &&&str| word.starts_with(['a', 'e', 'i', 'o', 'u']);
        assert_eq!(ADJECTIVES.iter().find(needs_an), None);
    }
}
