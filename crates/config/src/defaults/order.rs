//! The order in which the files of a tree are merged.

use super::tree::TreeNode;
use crate::origin::Origin;
use crate::value::Node;

/// A file in merge order.
pub(crate) struct Merge {
    pub config: String,
    pub package: String,
    /// The config whose defaults list brought it in.
    pub parent: Option<String>,
    pub is_self: bool,
    pub is_primary: bool,
    pub content: Node,
    pub override_key: Option<String>,
    /// The entry that selects it.
    pub origin: Origin,
}

/// Appends the files of a tree to `merges`, in order; takes their contents.
pub(super) fn flatten(tree: &mut TreeNode, parent: Option<&str>, merges: &mut Vec<Merge>) {
    let item = &tree.item;
    if tree.children.is_empty() {
        if item.deleted || item.is_missing() || item.name().is_none() {
            return;
        }
        if let Some(content) = tree.content.take() {
            merges.push(Merge {
                config: item.config_path(),
                package: item.final_package(),
                parent: parent.map(str::to_string),
                is_self: false,
                is_primary: item.is_primary,
                content,
                override_key: item.is_group().then(|| item.override_key()),
                origin: item.origin.clone(),
            });
        }
        return;
    }
    let config = item.config_path();
    let mut content = tree.content.take();
    // A group counts once, however many parts its own content has been split into.
    let mut override_key = item.is_group().then(|| item.override_key());
    for child in &mut tree.children {
        if !child.item.is_self() {
            flatten(child, Some(&config), merges);
            continue;
        }
        if let Some(content) = content.take() {
            merges.push(Merge {
                config: config.clone(),
                package: tree.item.final_package(),
                parent: parent.map(str::to_string),
                is_self: true,
                is_primary: tree.item.is_primary,
                content,
                override_key: override_key.take(),
                origin: tree.item.origin.clone(),
            });
        }
    }
}
