//! The reference of the configuration: `docs/configuration.md` and `docs/config.schema.json`.
//!
//! Both are generated from the typed configs, so a field's doc comment is its documentation and its range stands in
//! one place. A test compares them with what would be written now, or writes them, if `cargo xtask docs` says so: built as the
//! other tests are, it needs nothing built again. A package of its own, since it is built from the whole workspace and
//! `cargo xtask sdk` shall not be.

mod choices;
mod defaults;
mod document;
mod page;
mod rows;

use std::fs;
use std::path::PathBuf;

use defaults::Defaults;

/// The files under `docs/`, with what they should hold.
fn generated() -> [(PathBuf, String); 2] {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = docs.join("configuration.md");
    let current = fs::read_to_string(&page).unwrap_or_default();
    let text = page::text(&current, &Defaults::compose());
    [
        (docs.join("config.schema.json"), document::text()),
        (page, text),
    ]
}

fn write() -> Result<(), String> {
    for (path, text) in generated() {
        fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(())
}

fn check() -> Result<(), String> {
    for (path, text) in generated() {
        if fs::read_to_string(&path).unwrap_or_default() != text {
            let name = path.file_name().unwrap_or_default().display();
            return Err(format!(
                "docs/{name} is out of date: run `cargo xtask docs`"
            ));
        }
    }
    Ok(())
}

#[test]
fn docs_are_current() {
    let done = match std::env::var_os("TT_UPDATE_DOCS") {
        Some(_) => write(),
        None => check(),
    };
    done.unwrap();
}
