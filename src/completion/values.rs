//! The values that a key may have, where they are a few: names of plug-ins, options, true and false.

use schemars::Schema;
use tt_config::{Composition, Table, key_options};

use crate::plugins::Plugins;
use crate::reference;

/// Those of `key` that begin with `start`, given what else is configured. Plug-ins are asked about their own keys.
pub(super) fn of(
    key: &str,
    start: &str,
    composition: &Composition,
    plugins: &Plugins,
) -> Vec<String> {
    let at = Key { key, composition };
    let found = at
        .of_plugin("model", "type", "", &plugins.models)
        .or_else(|| at.of_plugin("trainer", "type", "kwargs", &plugins.trainers))
        .or_else(|| at.of_plugin("trainer.optimizer", "type", "kwargs", &plugins.optimizers))
        .or_else(|| {
            at.of_plugin(
                "trainer.lr_scheduler",
                "type",
                "kwargs",
                &tt_optimizers::SCHEDULES,
            )
        })
        .or_else(|| at.of_plugin("data.dataset", "url", "kwargs", &plugins.sources))
        .or_else(|| at.of_plugin("data.collator", "type", "kwargs", &plugins.collators))
        .unwrap_or_else(|| of_schema(&reference::schema(), key));
    let found = found.into_iter().filter(|value| value.starts_with(start));
    found.collect()
}

struct Key<'a> {
    key: &'a str,
    composition: &'a Composition,
}

impl Key<'_> {
    /// `None` if the key is not what names a plug-in of `table`, nor an option of the one that is named.
    fn of_plugin<B: Clone>(
        &self,
        group: &str,
        name_key: &str,
        kwargs: &str,
        table: &Table<B>,
    ) -> Option<Vec<String>> {
        let rest = self.key.strip_prefix(group)?.strip_prefix('.')?;
        if rest == name_key {
            return Some(table.names().into_iter().map(str::to_owned).collect());
        }
        let option = match kwargs {
            "" => rest,
            kwargs => rest.strip_prefix(kwargs)?.strip_prefix('.')?,
        };
        let chosen = self.composition.section(group).section(name_key);
        let entry = table.get(&chosen.text().ok()?).ok()?;
        // What all models have in common is described with the rest.
        Some(of_schema(&(entry.schema)(), option)).filter(|found| !found.is_empty())
    }
}

fn of_schema(schema: &Schema, key: &str) -> Vec<String> {
    key_options(schema.as_value(), &key.split('.').collect::<Vec<_>>())
}
