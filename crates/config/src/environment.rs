//! What composition reads from outside the configuration: variables, the time, the directory.
//!
//! All of it can be replaced, so that tests do not depend on the machine.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::ZonedDateTime;
use jiff::fmt::strtime;

type Variables = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Environment {
    variables: Variables,
    /// Fixed when the composition starts: `${now:}` gives the same time everywhere.
    now: ZonedDateTime,
    pub directory: PathBuf,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Environment {
    /// The environment of this process.
    pub(crate) fn process() -> Self {
        Environment {
            variables: Arc::new(|name| {
                // Names that the operating system cannot have would make the look-up panic.
                if name.is_empty() || name.contains(['=', '\0']) {
                    return None;
                }
                std::env::var(name).ok()
            }),
            now: ZonedDateTime::now(),
            directory: std::env::current_dir().unwrap_or_default(),
            warnings: Arc::default(),
        }
    }

    pub(crate) fn with_variables(mut self, variables: HashMap<String, String>) -> Self {
        self.variables = Arc::new(move |name| variables.get(name).cloned());
        self
    }

    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        (self.variables)(name)
    }

    /// The time, written by a `strftime` format; `None` if the format is not valid.
    pub(crate) fn now(&self, format: &str) -> Option<String> {
        strtime::format(format, &self.now).ok()
    }

    pub(crate) fn warn(&self, warning: String) {
        let mut warnings = lock(&self.warnings);
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        lock(&self.warnings).clone()
    }
}

fn lock(warnings: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    // A list of texts is whole whatever a panicking holder did.
    warnings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
