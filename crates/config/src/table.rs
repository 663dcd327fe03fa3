//! Registries: explicit tables from a name in the configuration to what builds the thing.
//!
//! A crate of plug-ins ends with `pub const TABLE: Table<Build> = Table::new(...)`. A program adds
//! its own entries with [`Table::with`]. Nothing registers itself.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, schema_for};

use crate::diagnostic::{Diagnostic, Diagnostics, nearest};
use crate::extract::Section;

/// One thing that can be chosen.
#[derive(Clone, Debug)]
pub struct Entry<B: 'static> {
    /// As the configuration names it: `adamw.AdamW`.
    pub name: &'static str,
    /// One line for listings.
    pub about: &'static str,
    /// The schema of its config.
    pub schema: fn() -> Schema,
    /// What builds it, usually a function pointer.
    pub build: B,
}

impl<B> Entry<B> {
    /// An entry whose config has the type `C`.
    pub const fn new<C: JsonSchema>(name: &'static str, about: &'static str, build: B) -> Self {
        Entry {
            name,
            about,
            schema: schema_of::<C>,
            build,
        }
    }
}

fn schema_of<C: JsonSchema>() -> Schema {
    schema_for!(C)
}

/// All things of one kind that can be chosen.
#[derive(Clone, Debug)]
pub struct Table<B: Clone + 'static> {
    kind: &'static str,
    entries: Cow<'static, [Entry<B>]>,
}

impl<B: Clone> Table<B> {
    /// `kind` is the singular noun for messages: `optimizer`.
    pub const fn new(kind: &'static str, entries: &'static [Entry<B>]) -> Self {
        Table {
            kind,
            entries: Cow::Borrowed(entries),
        }
    }

    /// The table with one entry more. An entry of the same name is replaced.
    pub fn with(mut self, entry: Entry<B>) -> Self {
        let entries = self.entries.to_mut();
        match entries.iter_mut().find(|known| known.name == entry.name) {
            Some(known) => *known = entry,
            None => entries.push(entry),
        }
        self
    }

    /// What is chosen from it, as messages say: `optimizer`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// What can be chosen, in the order it was added.
    pub fn entries(&self) -> &[Entry<B>] {
        &self.entries
    }

    /// What the configuration may say.
    pub fn names(&self) -> Vec<&'static str> {
        self.entries.iter().map(|entry| entry.name).collect()
    }

    /// The entry of a name, or an error that lists the names there are.
    pub fn get(&self, name: &str) -> Result<&Entry<B>, Diagnostic> {
        self.entries
            .iter()
            .find(|entry| entry.name == name)
            .ok_or_else(|| {
                let names = self.names();
                let problem = Diagnostic::new(format!("unknown {} `{name}`", self.kind))
                    .note(format!("there are {}", names.join(", ")));
                match nearest(name, names.iter().copied()).or_else(|| same_end(name, &names)) {
                    Some(near) => problem.label(format!("did you mean `{near}`?")),
                    None => problem,
                }
            })
    }

    /// The entry that the key `type` of a section chooses. Problems point at that key.
    pub fn choose(&self, section: &Section<'_>) -> Result<&Entry<B>, Diagnostics> {
        let chosen = section.section("type");
        let name = chosen.text()?;
        self.get(&name).map_err(|problem| match chosen.node() {
            Some(node) => problem.at(&node.origin).into(),
            None => problem.into(),
        })
    }

    /// What messages call an entry: ``optimizer `adamw.AdamW` ``.
    pub fn subject(&self, entry: &Entry<B>) -> String {
        format!("{} `{}`", self.kind, entry.name)
    }
}

/// `AdamW` or `adamw` for `adamw.AdamW`: a name given without its module or its class.
fn same_end<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    let last = name.rsplit('.').next()?.to_lowercase();
    names
        .iter()
        .find(|known| known.split('.').any(|part| part.to_lowercase() == last))
        .copied()
}
