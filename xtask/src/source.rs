//! The modules of a crate, and the paths that each of them names: as much of Rust as that takes.
//!
//! Read token by token, so that comments and strings do not count. Macros are read like other code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Names from the root of the crate; the root's own is empty.
pub type ModulePath = Vec<String>;

/// A module, inline ones apart: they belong to the module around them.
#[derive(Debug)]
pub struct Source {
    pub file: PathBuf,
    /// What it names, from the root of the crate.
    pub uses: BTreeSet<ModulePath>,
    /// Names that it hands on from elsewhere.
    pub re_exports: BTreeMap<String, ModulePath>,
    /// Names of its own items.
    pub defines: BTreeSet<String>,
}

/// The modules of the crate whose root is the file `lib`, without tests.
pub fn modules(lib: &Path) -> Result<BTreeMap<ModulePath, Source>> {
    let mut found = BTreeMap::new();
    read(lib, &[], true, &mut found)?;
    Ok(found)
}

fn read(
    file: &Path,
    path: &[String],
    is_root: bool,
    found: &mut BTreeMap<ModulePath, Source>,
) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let tokens = without_tests(&tokens(&text));
    let children = children(&tokens);
    let mut reader = Reader {
        tokens: &tokens,
        depths: inline_depths(&tokens),
        path,
        names: children
            .iter()
            .map(|child| (child.clone(), [path, std::slice::from_ref(child)].concat()))
            .collect(),
        source: Source {
            file: file.to_owned(),
            uses: BTreeSet::new(),
            re_exports: BTreeMap::new(),
            defines: defined(&tokens),
        },
    };
    reader.read_imports();
    reader.read_paths();
    found.insert(path.to_vec(), reader.source);
    // `a/mod.rs` and the root have their modules beside them, `a.rs` in the folder `a`.
    let parent = file.parent().unwrap_or(Path::new(""));
    let folder = match file.file_stem() {
        Some(stem) if !is_root && stem != "mod" => parent.join(stem),
        _ => parent.to_owned(),
    };
    for child in children {
        let files = [format!("{child}.rs"), format!("{child}/mod.rs")];
        let files = files.map(|name| folder.join(name));
        let Some(file) = files.into_iter().find(|file| file.is_file()) else {
            continue; // generated
        };
        read(&file, &[path, &[child]].concat(), false, found)?;
    }
    Ok(())
}

/// How many inline modules, `mod name { .. }`, are around each token.
fn inline_depths(tokens: &[&str]) -> Vec<usize> {
    let mut depths = Vec::with_capacity(tokens.len());
    // For each open brace, whether it is a module's.
    let mut open: Vec<bool> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "{" => open.push(at >= 2 && tokens[at - 2] == "mod"),
            "}" => drop(open.pop()),
            _ => {}
        }
        depths.push(open.iter().filter(|is_module| **is_module).count());
    }
    depths
}

/// The names of `mod name;`.
fn children(tokens: &[&str]) -> Vec<String> {
    let declared = tokens
        .windows(3)
        .filter(|it| it[0] == "mod" && it[2] == ";");
    declared.map(|it| it[1].to_owned()).collect()
}

fn defined(tokens: &[&str]) -> BTreeSet<String> {
    const ITEMS: [&str; 8] = [
        "fn", "struct", "enum", "trait", "type", "const", "static", "union",
    ];
    let items = tokens.windows(2).filter(|it| ITEMS.contains(&it[0]));
    items.map(|it| it[1].to_owned()).collect()
}

struct Reader<'t> {
    tokens: &'t [&'t str],
    /// How many inline modules are around each token.
    depths: Vec<usize>,
    path: &'t [String],
    /// What stands for a path here: child modules, and modules that were imported.
    names: BTreeMap<String, ModulePath>,
    source: Source,
}

impl Reader<'_> {
    fn read_imports(&mut self) {
        let mut at = 0;
        while at < self.tokens.len() {
            if !is_import(self.tokens, at) {
                at += 1;
                continue;
            }
            let is_public = is_public(&self.tokens[..at]);
            let depth = self.depths[at];
            let mut imports = Vec::new();
            at = tree(self.tokens, at + 1, &[], &mut imports);
            for (import, name) in imports {
                let Some(path) = self.absolute(&import, depth) else {
                    continue;
                };
                if is_public {
                    self.source.re_exports.insert(name, path);
                } else {
                    self.names.insert(name, path.clone());
                    self.source.uses.insert(path);
                }
            }
        }
    }

    /// Paths in code.
    fn read_paths(&mut self) {
        let mut at = 0;
        while at < self.tokens.len() {
            if is_import(self.tokens, at) {
                at = tree(self.tokens, at + 1, &[], &mut Vec::new());
                continue;
            }
            let is_start = is_name(self.tokens[at])
                && self.tokens.get(at + 1) == Some(&"::")
                && (at == 0 || self.tokens[at - 1] != "::");
            if !is_start {
                at += 1;
                continue;
            }
            let depth = self.depths[at];
            let mut names = vec![self.tokens[at].to_owned()];
            while self.tokens.get(at + 1) == Some(&"::") {
                let Some(name) = self.tokens.get(at + 2).filter(|name| is_name(name)) else {
                    break; // a turbofish
                };
                names.push((*name).to_owned());
                at += 2;
            }
            at += 1;
            if let Some(path) = self.absolute(&names, depth) {
                self.source.uses.insert(path);
            }
        }
    }

    /// The path from the root of the crate; `None` if it is of another crate, or of a type here.
    fn absolute(&self, names: &[String], depth: usize) -> Option<ModulePath> {
        let supers = names.iter().take_while(|name| *name == "super").count();
        if supers > 0 {
            // An inline module's `super` is in this file still.
            let up = supers.saturating_sub(depth);
            let base = &self.path[..self.path.len().checked_sub(up)?];
            return Some([base, &names[supers..]].concat());
        }
        let (first, rest) = names.split_first()?;
        let mut base = match first.as_str() {
            "crate" | "$crate" => Vec::new(),
            "self" => self.path.to_vec(),
            name => self.names.get(name)?.clone(),
        };
        for name in rest {
            match name.as_str() {
                "super" => drop(base.pop()?),
                "self" => {}
                _ => base.push(name.clone()),
            }
        }
        Some(base)
    }
}

/// Whether a `use` stands at `at`, and not the bound `use<>`.
fn is_import(tokens: &[&str], at: usize) -> bool {
    tokens[at] == "use" && tokens.get(at + 1) != Some(&"<")
}

/// Whether the `use` after these tokens has a visibility.
fn is_public(before: &[&str]) -> bool {
    match before.last() {
        Some(&"pub") => true,
        Some(&")") => {
            let open = before.iter().rposition(|token| *token == "(");
            open.is_some_and(|open| open > 0 && before[open - 1] == "pub")
        }
        _ => false,
    }
}

/// Reads a tree of imports at `at`: each path with the name it gets. Gives where it ends.
fn tree(
    tokens: &[&str],
    mut at: usize,
    prefix: &[String],
    imports: &mut Vec<(ModulePath, String)>,
) -> usize {
    let mut path = prefix.to_vec();
    let mut name = None;
    let mut is_leaf = true;
    while let Some(&token) = tokens.get(at) {
        match token {
            "::" => {}
            "{" => {
                is_leaf = false;
                at += 1;
                while !matches!(tokens.get(at), None | Some(&"}" | &";")) {
                    at = tree(tokens, at, &path, imports);
                    if tokens.get(at) == Some(&",") {
                        at += 1;
                    }
                }
            }
            "*" => path.push("*".to_owned()),
            "as" => {
                at += 1;
                name = tokens.get(at).map(|name| (*name).to_owned());
            }
            "," | "}" | ";" => break,
            _ => path.push(token.to_owned()),
        }
        at += 1;
    }
    if is_leaf && path.len() > prefix.len() {
        // `a::{self}` is `a` itself.
        let own = path.iter().rev().find(|name| *name != "self").cloned();
        let name = name.or(own).unwrap_or_default();
        imports.push((path, name));
    }
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_' || c == '$')
}

/// Without items under `#[cfg(test)]`.
fn without_tests<'t>(tokens: &[&'t str]) -> Vec<&'t str> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].starts_with(&TEST) {
            kept.push(tokens[at]);
            at += 1;
            continue;
        }
        at += TEST.len();
        let mut depth = 0usize;
        while at < tokens.len() {
            let token = tokens[at];
            at += 1;
            match token {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && matches!(token, "}" | ";") {
                break;
            }
        }
    }
    kept
}

/// Names, `::` and single characters; without comments, and literals as `"`.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(len) = literal(rest) {
            tokens.push("\"");
            len
        } else if first.is_alphanumeric() || first == '_' || first == '$' {
            let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
            let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            tokens.push(&rest[..len]);
            len
        } else if rest.starts_with("::") {
            tokens.push("::");
            2
        } else {
            let len = first.len_utf8();
            if !first.is_whitespace() {
                tokens.push(&rest[..len]);
            }
            len
        };
        rest = &rest[len..];
    }
    tokens
}

/// The length of the string or character that the text begins with.
fn literal(text: &str) -> Option<usize> {
    let raw = text.strip_prefix('b').unwrap_or(text);
    if let Some(rest) = raw.strip_prefix('r') {
        let hashes = rest.len() - rest.trim_start_matches('#').len();
        if rest[hashes..].starts_with('"') {
            let start = text.len() - rest.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            let end = text[start..].find(&close)?;
            return Some(start + end + close.len());
        }
    }
    let quote = raw.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let start = text.len() - raw.len() + 1;
    let mut is_escaped = false;
    for (i, c) in text[start..].char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return Some(start + i + 1),
            // A lifetime has no closing quote.
            _ if quote == '\'' && i > 0 && !text[start..].starts_with('\\') => return None,
            _ => {}
        }
    }
    None
}
