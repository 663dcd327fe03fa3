//! The plug-ins that a configuration chooses from.

use schemars::Schema;
use tt_config::Table;

/// A plug-in of the tables: what names it, and where its own config stands.
pub(crate) struct Choice {
    /// What it is, in the singular: `optimizer`.
    pub(crate) kind: &'static str,
    /// The key whose value names it: `trainer.optimizer.type`.
    pub(crate) key: &'static str,
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The key of its own config: `trainer.optimizer.kwargs`.
    pub(crate) section: &'static str,
    pub(crate) schema: Schema,
}

/// Every plug-in that is built in, in the order of the walk from model to data.
pub(crate) fn choices() -> Vec<Choice> {
    let mut all = listed(&tt_models::TABLE, "model.type", "model");
    all.extend(listed(
        &tt_trainers::TABLE,
        "trainer.type",
        "trainer.kwargs",
    ));
    all.extend(listed(
        &tt_optimizers::TABLE,
        "trainer.optimizer.type",
        "trainer.optimizer.kwargs",
    ));
    all.extend(listed(
        &tt_optimizers::SCHEDULES,
        "trainer.lr_scheduler.type",
        "trainer.lr_scheduler.kwargs",
    ));
    all.extend(listed(
        &tt_data::SOURCES,
        "data.dataset.url",
        "data.dataset.kwargs",
    ));
    all.extend(listed(
        &tt_collators::TABLE,
        "data.collator.type",
        "data.collator.kwargs",
    ));
    all
}

fn listed<B: Clone>(table: &Table<B>, key: &'static str, section: &'static str) -> Vec<Choice> {
    let entries = table.entries().iter();
    entries
        .map(|entry| Choice {
            kind: table.kind(),
            key,
            name: entry.name,
            about: entry.about,
            section,
            schema: (entry.schema)(),
        })
        .collect()
}
