//! Names of a model's tensors in files, where they are not its own paths: what is read and what is written.

use std::sync::Arc;

/// From a path to a name in files.
type Rename = Arc<dyn Fn(&str) -> String + Send + Sync>;
/// From a name in files to what it was before, if it was another.
type Former = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// How the parameters of a model are named in checkpoints: what is read and what is written.
///
/// By default a parameter is saved under its path. Published checkpoints may lack a prefix, hold buffers that the model
/// computes, or a tied weight a second time; this says so, for loading and saving alike.
///
/// ```
/// use tt_models::TensorNames;
///
/// let names = TensorNames::default()
///     .renamed(|path| path.replace("gamma", "weight"))
///     .with_optional_prefix("transformer.")
///     .ignoring(&["*.attn.bias"]);
/// assert_eq!(names.saved("transformer.ln_f.gamma"), "transformer.ln_f.weight");
/// let published = ["ln_f.weight"];
/// assert_eq!(names.found("transformer.ln_f.gamma", |name| published.contains(&name)), "ln_f.weight");
/// ```
#[derive(Clone, Default)]
pub struct TensorNames {
    rename: Option<Rename>,
    optional_prefix: Option<&'static str>,
    former: Option<Former>,
    ignored: &'static [&'static str],
    lacked: &'static [&'static str],
    copies: &'static [(&'static str, &'static str)],
    head: &'static [&'static str],
}

impl TensorNames {
    /// The parameter at `path` is saved as `rename(path)`, no two under one name.
    pub fn renamed(self, rename: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self {
            rename: Some(Arc::new(rename)),
            ..self
        }
    }

    /// Files may lack `prefix` at the beginning of names; it is written.
    pub fn with_optional_prefix(self, prefix: &'static str) -> Self {
        Self {
            optional_prefix: Some(prefix),
            ..self
        }
    }

    /// Old files may hold what is called `name` under `former(name)`; it is not written so.
    pub fn with_former(
        self,
        former: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            former: Some(Arc::new(former)),
            ..self
        }
    }

    /// Files may hold such tensors, which the model computes or has no use for. `*` stands for any characters, dots included.
    pub fn ignoring(self, patterns: &'static [&'static str]) -> Self {
        Self {
            ignored: patterns,
            ..self
        }
    }

    /// Files may hold such weights, of parts that this model lacks: they are passed over as those of
    /// [`TensorNames::ignoring`] are, but not without a word.
    pub fn lacking(self, patterns: &'static [&'static str]) -> Self {
        Self {
            lacked: patterns,
            ..self
        }
    }

    /// Files may hold, as `(name, path)`, the parameter at `path` a second time: a tied head. It must be equal, and is not
    /// written.
    pub fn with_copies(self, copies: &'static [(&'static str, &'static str)]) -> Self {
        Self { copies, ..self }
    }

    /// Patterns of the paths of the head's own parameters, which files of the model without its head (`BertModel`) lack
    /// together.
    pub fn with_head(self, patterns: &'static [&'static str]) -> Self {
        Self {
            head: patterns,
            ..self
        }
    }

    /// What the parameter at `path` is called in a file that is written.
    pub fn saved(&self, path: &str) -> String {
        match &self.rename {
            Some(rename) => rename(path),
            None => path.to_owned(),
        }
    }

    /// What it is called in a file that is read, of which `contains` tells what it holds; if it holds no form of it, the
    /// one that is written.
    pub fn found(&self, path: &str, contains: impl Fn(&str) -> bool) -> String {
        let saved = self.saved(path);
        if contains(&saved) {
            return saved;
        }
        let former = self.former.as_ref().and_then(|former| former(&saved));
        let prefix = self.optional_prefix.unwrap_or_default();
        let forms = [Some(&saved), former.as_ref()].into_iter().flatten();
        let mut forms = forms.flat_map(|name| {
            let without = name.strip_prefix(prefix).unwrap_or(name);
            [name.as_str(), without]
        });
        let found = forms.find(|name| contains(name));
        found.unwrap_or(&saved).to_owned()
    }

    /// Patterns of tensors to pass over.
    pub fn ignored(&self) -> &[&'static str] {
        self.ignored
    }

    /// Patterns of weights of parts that the model lacks.
    pub fn lacked(&self) -> &[&'static str] {
        self.lacked
    }

    /// Patterns of the paths of the head's own parameters.
    pub fn head(&self) -> &[&'static str] {
        self.head
    }

    /// Names in files, and the paths of the parameters that they repeat.
    pub fn copies(&self) -> &[(&'static str, &'static str)] {
        self.copies
    }
}
