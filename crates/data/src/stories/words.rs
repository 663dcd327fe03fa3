//! The words of the stories.

/// Someone with a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    pub(super) name: &'static str,
    pub(super) pronouns: Pronouns,
}

/// he, him, his; and capitals for the start of a sentence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pronouns {
    pub(super) he: &'static str,
    pub(super) him: &'static str,
    pub(super) his: &'static str,
    pub(super) he_capital: &'static str,
    pub(super) his_capital: &'static str,
}

const SHE: Pronouns = Pronouns {
    he: "she",
    him: "her",
    his: "her",
    he_capital: "She",
    his_capital: "Her",
};
const HE: Pronouns = Pronouns {
    he: "he",
    him: "him",
    his: "his",
    he_capital: "He",
    his_capital: "His",
};

const fn she(name: &'static str) -> Name {
    Name {
        name,
        pronouns: SHE,
    }
}

const fn he(name: &'static str) -> Name {
    Name { name, pronouns: HE }
}

#[rustfmt::skip]
pub(super) const NAMES: &[Name] = &[
    she("Anna"), she("Bella"), she("Clara"), she("Daisy"), she("Ella"), she("Flora"), she("Greta"), she("Hazel"),
    she("Iris"), she("Julia"), she("Kate"), she("Lily"), she("Mia"), she("Nora"), she("Olga"), she("Poppy"),
    she("Rosa"), she("Sophie"), she("Tess"), she("Wilma"),
    he("Adam"), he("Ben"), he("Carl"), he("David"), he("Eli"), he("Finn"), he("Gus"), he("Hugo"),
    he("Ivan"), he("Jack"), he("Kurt"), he("Leo"), he("Max"), he("Noah"), he("Otto"), he("Paul"),
    he("Ravi"), he("Sam"), he("Tom"), he("Victor"),
];

/// What heroes are: after "a little".
#[rustfmt::skip]
pub(super) const HEROES: &[&str] = &[
    "fox", "rabbit", "bear", "mouse", "frog", "duck", "hedgehog", "squirrel", "badger", "kitten", "lamb", "pony",
];

/// What friends are: after "a kind old".
#[rustfmt::skip]
pub(super) const FRIENDS: &[&str] = &[
    "owl", "goat", "crow", "turtle", "mole", "goose", "beaver", "deer", "donkey", "heron", "wolf", "toad",
];

/// A place, and where in it something may be.
pub(super) struct Place {
    pub(super) name: &'static str,
    pub(super) spots: [&'static str; 3],
}

const fn place(name: &'static str, spots: [&'static str; 3]) -> Place {
    Place { name, spots }
}

#[rustfmt::skip]
pub(super) const PLACES: &[Place] = &[
    place("river", ["under the stone bridge", "behind the tall reeds", "beside the muddy bank"]),
    place("farm", ["inside the red barn", "behind the hay cart", "under the chicken coop"]),
    place("forest", ["under the oak tree", "inside a hollow log", "among the green ferns"]),
    place("beach", ["behind the black rocks", "under the upturned boat", "inside a sand castle"]),
    place("garden", ["under the rose bush", "behind the wooden fence", "among the carrots"]),
    place("village", ["beside the deep well", "behind the bakery", "under the church bells"]),
    place("school", ["under the teacher's desk", "behind the blackboard", "inside the music room"]),
    place("castle", ["inside the high tower", "behind the iron gate", "under the king's chair"]),
    place("harbor", ["behind the fishing nets", "under the long pier", "beside the anchor"]),
    place("meadow", ["among the wild flowers", "under the apple tree", "beside the beehive"]),
    place("mountain", ["inside the dark cave", "behind the steep cliff", "beside the frozen stream"]),
    place("market", ["under the fruit stand", "behind the flower cart", "between the cheese baskets"]),
    place("lake", ["under the floating dock", "among the water lilies", "behind the rowing club"]),
    place("library", ["between the dusty shelves", "under the reading table", "behind the globe"]),
    place("station", ["under the waiting bench", "beside the ticket window", "inside the last wagon"]),
    place("park", ["under the swings", "behind the fountain", "beside the duck pond"]),
    place("lighthouse", ["under the spiral stairs", "behind the great lamp", "beside the round window"]),
    place("hill", ["behind the windmill", "under the lonely pine", "beside the stone wall"]),
    place("island", ["under the palm trees", "behind the waterfall", "inside a treasure chest"]),
    place("orchard", ["under the pear tree", "behind the tall ladder", "between the cherry rows"]),
    place("mill", ["behind the water wheel", "under the flour sacks", "beside the grinding stones"]),
    place("valley", ["beside the winding path", "under the hanging moss", "behind the shepherd's hut"]),
    place("camp", ["beside the camp fire", "inside the biggest tent", "under the picnic blanket"]),
    place("theater", ["behind the velvet curtain", "under the front seats", "inside the costume trunk"]),
];

/// A thing, and what one does with it.
pub(super) struct Object {
    pub(super) noun: &'static str,
    pub(super) verb: &'static str,
    pub(super) past: &'static str,
    /// The part that breaks.
    pub(super) part: &'static str,
}

const fn object(
    noun: &'static str,
    verb: &'static str,
    past: &'static str,
    part: &'static str,
) -> Object {
    Object {
        noun,
        verb,
        past,
        part,
    }
}

#[rustfmt::skip]
pub(super) const OBJECTS: &[Object] = &[
    object("kite", "fly", "flew", "tail"),
    object("ball", "throw", "threw", "seam"),
    object("drum", "beat", "beat", "skin"),
    object("boat", "sail", "sailed", "mast"),
    object("book", "read", "read", "cover"),
    object("lantern", "light", "lit", "glass"),
    object("hat", "wear", "wore", "brim"),
    object("bell", "ring", "rang", "handle"),
    object("whistle", "blow", "blew", "mouthpiece"),
    object("top", "spin", "spun", "point"),
    object("flute", "play", "played", "key"),
    object("wagon", "pull", "pulled", "axle"),
    object("puzzle", "solve", "solved", "corner"),
    object("bucket", "fill", "filled", "bottom"),
    object("basket", "carry", "carried", "lid"),
    object("tent", "pitch", "pitched", "pole"),
    object("blanket", "fold", "folded", "hem"),
    object("sled", "ride", "rode", "runner"),
    object("clock", "wind", "wound", "spring"),
    object("map", "study", "studied", "edge"),
    object("rope", "climb", "climbed", "knot"),
    object("spoon", "polish", "polished", "stem"),
    object("mask", "paint", "painted", "ribbon"),
    object("hoop", "roll", "rolled", "rim"),
    object("net", "cast", "cast", "mesh"),
    object("swing", "push", "pushed", "seat"),
    object("telescope", "aim", "aimed", "lens"),
    object("box", "open", "opened", "hinge"),
    object("doll", "hug", "hugged", "sleeve"),
    object("shovel", "swing", "swung", "blade"),
];

#[rustfmt::skip]
pub(super) const ADJECTIVES: &[&str] = &[
    "red", "blue", "green", "yellow", "purple", "golden", "silver", "white", "wooden", "striped", "shiny", "tiny",
];

#[rustfmt::skip]
pub(super) const TIMES: &[&str] = &[
    "One sunny morning", "One rainy afternoon", "One cold winter day", "One windy evening",
    "On a warm spring day", "Early on Sunday", "Late in the summer", "On the first day of autumn",
];

#[rustfmt::skip]
pub(super) const GIVERS: &[&str] = &[
    "grandmother", "grandfather", "mother", "father", "aunt", "uncle", "sister", "brother",
];
