//! What is said about an option that was not chosen, or does not exist.

use super::item::Item;
use super::tree::Builder;
use crate::diagnostic::{Diagnostic, nearest};

impl Builder<'_> {
    pub(super) fn require_choice(&mut self, item: &Item) {
        if self.skip_missing {
            return;
        }
        let key = item.override_key();
        if !item.is_group() {
            self.problems
                .push(Diagnostic::new("a config file cannot be left at ???").at(&item.origin));
            return;
        }
        let options = self.repository.options(&item.group_path());
        self.problems.push(
            Diagnostic::new(format!("an option of `{key}` must be chosen"))
                .at(&item.origin)
                .label(format!("choose with {key}=OPTION"))
                .note(format!("options: {}", options.join(", "))),
        );
    }

    pub(super) fn not_found(&mut self, item: &Item, parent: Option<&str>) {
        let config = item.config_path();
        let place = parent.map_or_else(String::new, |parent| format!("in '{parent}': "));
        let mut problem = if item.is_primary {
            Diagnostic::new(format!("there is no config '{config}'"))
        } else if item.is_group() {
            Diagnostic::new(format!("{place}there is no config '{config}'")).at(&item.origin)
        } else {
            Diagnostic::new(format!("{place}there is no config file '{}'", item.text))
                .at(&item.origin)
        };
        let group = item.group_path();
        let options = self.repository.options(&group);
        let name = item.name().unwrap_or_default();
        if let Some(near) = nearest(name, options.iter().map(String::as_str)) {
            problem = problem.label(format!("did you mean `{near}`?"));
        }
        if item.is_group() && !options.is_empty() {
            problem = problem.note(format!("options of `{group}`: {}", options.join(", ")));
        } else if item.is_group() && !self.repository.group_exists(&group) {
            let groups = self.repository.groups();
            problem = match nearest(&group, groups.iter().map(String::as_str)) {
                Some(near) => problem.note(format!(
                    "there is no group `{group}`; did you mean `{near}`?"
                )),
                None => problem.note(format!("there is no group `{group}`")),
            };
        } else if item.is_primary && !options.is_empty() {
            problem = problem.note(format!("configs: {}", options.join(", ")));
        }
        let package = item.final_package();
        let top = package.split('.').next().unwrap_or_default();
        self.absent.push(top.to_string());
        let path = self.repository.search_path();
        self.problems
            .push(problem.note(format!("search path: {path}")));
    }
}
