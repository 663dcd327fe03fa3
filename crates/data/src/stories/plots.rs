//! The plots: what happens, as beats, each of which can be told in a few ways.
//!
//! In a sentence, `{hero}` and the like are filled in by [`super::cast::Cast`]. The cast stays the
//! same through a story: who loses a red kite in the first sentence finds a red kite in the last.
//! That is what a model can learn here beyond neighbouring words.

/// A story's beats in order; one sentence or more is chosen from each.
pub(super) type Plot = &'static [&'static [&'static str]];

pub(super) const OPENINGS: &[&str] = &[
    "Once upon a time, there was a little {hero_kind} named {hero}. {He} lived near the {place}.",
    "A little {hero_kind} named {hero} lived close to the {place}.",
    "Near the {place} lived a little {hero_kind}. {His} name was {hero}.",
    "Long ago, a young {hero_kind} called {hero} made a home by the {place}.",
];

#[rustfmt::skip]
pub(super) const PLOTS: &[Plot] = &[LOST, BROKEN, ONLY_ONE, STUCK, PRESENT, EARNED];

const LOST: Plot = &[
    &[
        "{time}, {hero} lost {his} {adjective} {noun}.",
        "{time}, {hero} could not find {his} {adjective} {noun}.",
    ],
    &[
        "{He} was very sad, because the {noun} was a gift from {his} {giver}.",
        "{He} began to cry, for {his} {giver} had made the {noun}.",
    ],
    &[
        "{hero} looked {spot}, but the {noun} was not there.",
        "First {he} searched {spot}, but there was no {noun}.",
    ],
    &[
        "Then a kind old {friend_kind} named {friend} came along.",
        "Soon {he} met {friend}, a kind old {friend_kind}.",
    ],
    &[
        "\"Why are you so sad?\" asked {friend}. \"I lost my {adjective} {noun},\" said {hero}.",
        "\"What is the matter?\" asked {friend}. \"My {adjective} {noun} is gone,\" said {hero}.",
    ],
    &[
        "\"Do not worry, I will help you,\" said {friend}.",
        "\"Four eyes see more than two,\" said {friend}. \"Let us look together.\"",
    ],
    &[
        "They looked {other_spot}, and there was the {adjective} {noun}!",
        "They found the {adjective} {noun} {other_spot}.",
    ],
    &[
        "\"Thank you, {friend}!\" said {hero}, and they {past} the {noun} until the sun went down.",
        "{hero} thanked {friend}, and together they {past} the {noun} all day long.",
    ],
];

const BROKEN: Plot = &[
    &[
        "{He} had a {adjective} {noun} and loved to {verb} it every day.",
        "{His} favorite toy was a {adjective} {noun}, which {his} {giver} had made.",
    ],
    &[
        "{time}, {he} fell down {spot}, and the {part} of the {noun} broke.",
        "{time}, the wind blew the {noun} against a stone, and its {part} broke.",
    ],
    &[
        "\"Oh no!\" cried {hero}. \"Now I cannot {verb} my {noun} any more.\"",
        "\"Oh dear!\" sighed {hero}. \"Who can mend my {adjective} {noun}?\"",
    ],
    &[
        "{friend}, a clever {friend_kind}, heard {him} and came to see.",
        "A clever {friend_kind} named {friend} heard {him} and hurried over.",
    ],
    &[
        "\"I can fix the {part},\" said {friend}. \"Bring me some glue and a piece of string.\"",
        "\"The {part} only needs a new nail,\" said {friend}. \"Please hold the {noun} still.\"",
    ],
    &[
        "{hero} did what {friend} said, and before long the {noun} was as good as new.",
        "They worked side by side, and before long the {adjective} {noun} was whole again.",
    ],
    &[
        "\"You are a true friend,\" said {hero}, and they {past} the {noun} together.",
        "{hero} was so happy that {he} gave {friend} a big hug. Then they {past} the {noun}.",
    ],
];

const ONLY_ONE: Plot = &[
    &[
        "{time}, {hero} was playing with a {adjective} {noun} {spot}.",
        "{time}, {hero} took {his} {adjective} {noun} and sat down {spot}.",
    ],
    &[
        "A shy {friend_kind} named {friend} stood nearby and watched.",
        "{friend}, a shy {friend_kind}, watched from far away.",
    ],
    &[
        "\"May I {verb} the {noun} too?\" asked {friend}. \"No, it is mine,\" said {hero}.",
        "\"Please let me {verb} your {noun},\" said {friend}. But {hero} shook {his} head.",
    ],
    &[
        "{friend} walked away with tears in {friend_his} eyes.",
        "{friend} felt lonely and went home without a word.",
    ],
    &[
        "But it was no fun to {verb} the {noun} alone, and {hero} felt sorry.",
        "Then {hero} remembered what {his} {giver} always said: \"Sharing makes joy grow.\"",
    ],
    &[
        "So {he} ran after {friend} and found {friend_him} {other_spot}.",
        "So {hero} looked for {friend} until {he} saw {friend_him} {other_spot}.",
    ],
    &[
        "\"I am sorry,\" said {hero}. \"Come, let us {verb} the {adjective} {noun} together.\"",
        "\"Forgive me,\" said {hero}. \"You may {verb} the {adjective} {noun} first.\"",
    ],
    &[
        "{friend} smiled, and from that day on they were best friends.",
        "They took turns, and both of them laughed all afternoon.",
    ],
];

const STUCK: Plot = &[
    &[
        "{time}, {he} went out to {verb} {his} {adjective} {noun}.",
        "{time}, {hero} wanted to {verb} a new {adjective} {noun}.",
    ],
    &[
        "But a strong gust of wind carried the {noun} high into a tree.",
        "But the {noun} slipped out of {his} hands and got stuck on a roof.",
    ],
    &[
        "{hero} jumped as high as {he} could, but {he} was much too small.",
        "{hero} tried to reach it with a stick, but the stick was too short.",
    ],
    &[
        "Just then {friend}, a brave {friend_kind}, came from {spot}.",
        "A brave {friend_kind} named {friend} was resting {spot}.",
    ],
    &[
        "\"Can you help me?\" asked {hero}. \"My {adjective} {noun} is stuck up there.\"",
        "\"I can not reach my {adjective} {noun},\" said {hero}. \"What shall I do?\"",
    ],
    &[
        "\"Stand on my back,\" said {friend}, and {hero} climbed up at once.",
        "\"Hold on to me tightly,\" said {friend}, and up they went.",
    ],
    &[
        "Carefully, {hero} took the {noun} by its {part} and pulled it free.",
        "With one last stretch, {hero} grabbed the {part} of the {noun}.",
    ],
    &[
        "\"We did it!\" they shouted. Then {hero} and {friend} {past} the {noun} by the {place}.",
        "\"Hooray!\" they cheered. After that, {hero} never {past} the {noun} without {friend}.",
    ],
];

const PRESENT: Plot = &[
    &[
        "{time}, {his} friend {friend} the {friend_kind} had a birthday.",
        "{time}, it was the birthday of {friend} the {friend_kind}.",
    ],
    &[
        "{hero} wanted to find a present, but {he} had no money.",
        "{hero} thought and thought, but {he} did not know what to give.",
    ],
    &[
        "\"What does {friend} like best?\" {he} asked {his} {giver}. \"To {verb} a {noun},\" was the answer.",
        "{His} {giver} said, \"{friend} has always wished for a {noun}.\"",
    ],
    &[
        "So {he} went to the {place} and gathered wood, paint and string {spot}.",
        "So {hero} looked {spot} and found an old {noun} that nobody wanted.",
    ],
    &[
        "{He} worked all night long, and in the morning {he} had a {adjective} {noun}.",
        "With a little work it became a lovely {adjective} {noun}.",
    ],
    &[
        "\"Happy birthday, {friend}!\" said {hero}. \"This {adjective} {noun} is for you.\"",
        "\"I made this {adjective} {noun} for you,\" said {hero}. \"Happy birthday, {friend}!\"",
    ],
    &[
        "\"It is the best present of all,\" said {friend}, and {friend_he} {past} the {noun} right away.",
        "{friend} was so glad that {friend_he} danced around the {noun}. Then they {past} it together.",
    ],
];

const EARNED: Plot = &[
    &[
        "{time}, {he} saw a {adjective} {noun} in a shop window.",
        "{time}, {hero} dreamed of a {adjective} {noun}.",
    ],
    &[
        "\"How I would love to {verb} that {noun},\" {he} said, but it cost ten coins.",
        "\"If only I could {verb} such a {noun},\" {he} sighed, but {his} pockets were empty.",
    ],
    &[
        "{friend}, a busy {friend_kind}, needed someone to sweep the floor {spot}.",
        "A busy {friend_kind} named {friend} was stacking wood {spot}.",
    ],
    &[
        "\"I will pay you if you help me,\" said {friend}. \"I will do my best,\" said {hero}.",
        "\"May I help you for a few coins?\" asked {hero}. \"Gladly,\" said {friend}.",
    ],
    &[
        "{hero} worked hard from morning to night and never complained.",
        "For three days {hero} worked hard, even {other_spot}.",
    ],
    &[
        "At last {friend} gave {him} ten coins, and {hero} ran to buy the {adjective} {noun}.",
        "When the work was done, {friend} smiled and handed {him} the {adjective} {noun}.",
    ],
    &[
        "{hero} {past} the {noun} with pride, because {he} had earned it.",
        "That evening {hero} {past} the {noun} and told {his} {giver} everything.",
    ],
];
