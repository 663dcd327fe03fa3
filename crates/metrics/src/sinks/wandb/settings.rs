//! Where each setting comes from: the config where it says something, else the environment, else `netrc` and W&B's
//! settings files, else a default.
//!
//! | variable | effect |
//! | --- | --- |
//! | `WANDB_API_KEY` | the key; else `netrc` (`NETRC`, `~/.netrc`, `~/_netrc`) under the host of the server, with its port if it has one; else a settings file |
//! | `WANDB_BASE_URL`, `WANDB_APP_URL` | where the server answers, and where people look |
//! | `WANDB_MODE` | `online` (also `run`), `offline` (also `dryrun`), `disabled` |
//! | `WANDB_DISABLED` | true: `disabled`; a courtesy, the reference client does not read it |
//! | `WANDB_PROJECT`, `ENTITY`, `NAME`, `NOTES`, `RUN_ID`, `RUN_GROUP`, `JOB_TYPE`, `TAGS`, `HOST` | as they say |
//! | `WANDB_RESUME` | `must` and `never` are obeyed; `allow` and `auto` are what is done anyway |
//! | `WANDB_DIR` | the folder that gets the folder `wandb` |
//! | `WANDB_SILENT` | true: warnings alone are said |
//! | `WANDB_DISABLE_GIT`, `WANDB_DISABLE_CODE` | true: no commit, no patch |
//! | `WANDB__DISABLE_STATS` | true: no system metrics |

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;

use super::config::{Mode, ResumeRule, WandbConfig};

const BASE_URL: &str = "https://api.wandb.ai";
/// What newer clients call the same service, and `wandb login` writes keys under.
const OTHER_HOST: &str = "api.forge.coreweave.com";
/// What the config group has when nobody has said anything.
const DEFAULT_PROJECT: &str = "tpu-train";
const MIN_KEY_LENGTH: usize = 40;

/// A secret that no message, log or debug print shows.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ApiKey(String);

impl ApiKey {
    fn new(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if text.len() < MIN_KEY_LENGTH {
            return Err("a key has at least 40 characters");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("a key is one word of ASCII");
        }
        Ok(Self(text.to_owned()))
    }

    pub(super) fn authorization(&self) -> String {
        let credentials = format!("api:{}", self.0);
        let credentials = base64::engine::general_purpose::STANDARD.encode(credentials);
        format!("Basic {credentials}")
    }

    /// A text without the key, should a user have written it there.
    pub(super) fn scrubbed(&self, text: &str) -> String {
        text.replace(&self.0, "***")
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// What may be asked for by name: the environment, or what a test puts in its place.
pub(super) type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The variables that settings are read from.
#[derive(Clone, Default)]
pub struct Environment(Option<BTreeMap<String, String>>);

impl Environment {
    /// Those of this process.
    pub fn of_process() -> Self {
        Self(None)
    }

    /// These and no others.
    pub fn of<'a>(vars: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let vars = vars.into_iter();
        Self(Some(
            vars.map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        ))
    }

    /// Empty is as good as not set.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let value = match &self.0 {
            None => std::env::var(name).ok(),
            Some(vars) => vars.get(name).cloned(),
        };
        value.filter(|value| !value.trim().is_empty())
    }
}

impl fmt::Debug for Environment {
    /// There may be a key in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment(..)")
    }
}

/// A value and who has said it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found<T> {
    pub(super) value: T,
    pub(super) from: String,
}

/// What a run goes by.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) mode: Found<Mode>,
    pub(super) server: Server,
    pub(super) project: Found<String>,
    /// None: that of the key.
    pub(super) entity: Option<String>,
    pub(super) name: Option<String>,
    pub(super) notes: Option<String>,
    /// None: the run's own.
    pub(super) id: Option<String>,
    pub(super) group: Option<String>,
    pub(super) job_type: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) host: Option<String>,
    pub(super) resume: ResumeRule,
    /// None: the folder of the run.
    pub(super) dir: Option<PathBuf>,
    pub(super) is_silent: bool,
    pub(super) has_git: bool,
    pub(super) has_patch: bool,
    pub(super) has_system_metrics: bool,
}

/// The service and how it knows us.
#[derive(Debug, Clone)]
pub(super) struct Server {
    /// Without a slash at its end.
    pub(super) base_url: String,
    pub(super) app_url: String,
    /// Why there is none, where there is none.
    pub(super) key: Result<Found<ApiKey>, String>,
}

/// A run's own words, as far as the config has any.
#[derive(Debug, Clone, Default)]
pub(super) struct OfRun {
    pub(super) project: Option<String>,
    pub(super) name: Option<String>,
    pub(super) notes: Option<String>,
}

impl Settings {
    /// Error: a setting that makes no sense, and whose it is.
    pub(super) fn find(config: &WandbConfig, run: &OfRun, var: Vars<'_>) -> Result<Self, String> {
        let files = SettingsFiles::read(var);
        let config_or = |value: &Option<String>, key: &str, variable: &str| {
            let of_config = value.clone().map(|value| Found {
                value,
                from: format!("kwargs.{key}"),
            });
            of_config.or_else(|| {
                Some(Found {
                    value: var(variable)?,
                    from: variable.to_owned(),
                })
            })
        };
        let text = |value: &Option<String>, key: &str, variable: &str| {
            config_or(value, key, variable).map(|found| found.value)
        };
        let root = |value: &Option<String>, key: &str| {
            let value = value.clone()?;
            let from = key.to_owned();
            Some(Found { value, from })
        };
        let chosen_project = run.project.clone().filter(|name| name != DEFAULT_PROJECT);
        let project = config_or(&config.project, "project", "")
            .or_else(|| root(&chosen_project, "project"))
            .or_else(|| config_or(&None, "", "WANDB_PROJECT"))
            .or_else(|| files.get("project"))
            .unwrap_or_else(|| Found {
                value: run.project.clone().unwrap_or(DEFAULT_PROJECT.to_owned()),
                from: "default".to_owned(),
            });
        check_name(&project, &['/', '\\', '#', '?', '%', ':'])?;
        let id = config_or(&config.id, "id", "WANDB_RUN_ID");
        if let Some(id) = &id {
            check_name(id, &[':', ';', ',', '#', '?', '/', '\'', '\\'])?;
        }
        let resume = match (config.resume, var("WANDB_RESUME")) {
            (Some(rule), _) => rule,
            (None, Some(text)) => ResumeRule::named(&text).ok_or_else(|| {
                format!("WANDB_RESUME: `{text}` is none of allow, must, never, auto")
            })?,
            (None, None) => ResumeRule::Allow,
        };
        let tags = config.tags.clone().unwrap_or_else(|| {
            let text = var("WANDB_TAGS").unwrap_or_default();
            let tags = text.split(',').map(|tag| tag.trim().to_owned());
            tags.filter(|tag| !tag.is_empty()).collect()
        });
        let is_on = |name| var(name).is_some_and(|value| is_true(&value));
        let has_git = !is_on("WANDB_DISABLE_GIT");
        Ok(Self {
            mode: mode(config, var, &files)?,
            server: Server::find(config.base_url.as_deref(), var, &files)?,
            project,
            entity: text(&config.entity, "entity", "WANDB_ENTITY")
                .or_else(|| Some(files.get("entity")?.value)),
            name: text(&config.name, "name", "")
                .or_else(|| run.name.clone())
                .or_else(|| var("WANDB_NAME")),
            notes: text(&config.notes, "notes", "")
                .or_else(|| run.notes.clone())
                .or_else(|| var("WANDB_NOTES")),
            id: id.map(|found| found.value),
            group: text(&config.group, "group", "WANDB_RUN_GROUP"),
            job_type: text(&config.job_type, "job_type", "WANDB_JOB_TYPE"),
            tags,
            host: var("WANDB_HOST"),
            resume,
            dir: config
                .dir
                .clone()
                .or_else(|| var("WANDB_DIR").map(PathBuf::from)),
            is_silent: is_on("WANDB_SILENT"),
            has_git,
            has_patch: config.save_patch && has_git && !is_on("WANDB_DISABLE_CODE"),
            has_system_metrics: config.system_metrics && !is_on("WANDB__DISABLE_STATS"),
        })
    }
}

fn mode(config: &WandbConfig, var: Vars<'_>, files: &SettingsFiles) -> Result<Found<Mode>, String> {
    if let Some(value) = config.mode {
        let from = "kwargs.mode".to_owned();
        return Ok(Found { value, from });
    }
    let disabled = "WANDB_DISABLED";
    if var(disabled).is_some_and(|value| is_true(&value)) {
        return Ok(Found {
            value: Mode::Disabled,
            from: disabled.to_owned(),
        });
    }
    let of_env = var("WANDB_MODE").map(|value| Found {
        value,
        from: "WANDB_MODE".to_owned(),
    });
    match of_env.or_else(|| files.get("mode")) {
        None => Ok(Found {
            value: Mode::Online,
            from: "default".to_owned(),
        }),
        Some(Found { value, from }) => match Mode::named(&value) {
            Some(value) => Ok(Found { value, from }),
            None => Err(format!(
                "{from}: `{value}` is none of online, offline, disabled"
            )),
        },
    }
}

impl Server {
    /// For what has no run: `tpu-train sync`.
    pub(super) fn from_env(var: Vars<'_>) -> Result<Self, String> {
        Self::find(None, var, &SettingsFiles::read(var))
    }

    fn find(of_config: Option<&str>, var: Vars<'_>, files: &SettingsFiles) -> Result<Self, String> {
        let base_url = match of_config {
            Some(url) => Some((url.to_owned(), "kwargs.base_url".to_owned())),
            None => var("WANDB_BASE_URL")
                .map(|url| (url, "WANDB_BASE_URL".to_owned()))
                .or_else(|| files.get("base_url").map(|found| (found.value, found.from))),
        };
        let is_given = base_url.is_some();
        let (base_url, from) = base_url.unwrap_or((BASE_URL.to_owned(), String::new()));
        let base_url = base_url.trim().trim_end_matches('/').to_owned();
        let host = base_url
            .strip_prefix("https://")
            .or_else(|| base_url.strip_prefix("http://"));
        let host = match host {
            // It goes into messages, so it may hold no password.
            Some(host) if host.contains('@') => {
                return Err(format!(
                    "{from} may not hold a user or a password; use WANDB_API_KEY"
                ));
            }
            Some(host) if !host.is_empty() && !host.contains(['?', '#', ' ']) => host,
            _ => {
                return Err(format!(
                    "{from}: `{base_url}` is no address such as {BASE_URL}"
                ));
            }
        };
        let host = host.split('/').next().unwrap_or(host);
        if host.ends_with("wandb.ai") && host != "api.wandb.ai" {
            return Err(format!(
                "{from}: {base_url} is where people look; programs ask {BASE_URL}"
            ));
        }
        let app_url = var("WANDB_APP_URL").unwrap_or_else(|| app_url(&base_url));
        let hosts = if is_given {
            vec![host]
        } else {
            vec![host, OTHER_HOST]
        };
        Ok(Self {
            key: key(&hosts, var, files),
            app_url: app_url.trim_end_matches('/').to_owned(),
            base_url,
        })
    }
}

/// Self-hosted servers serve people and programs on one origin.
fn app_url(base_url: &str) -> String {
    if base_url.contains("://api.wandb.") {
        base_url.replacen("://api.wandb.", "://wandb.", 1)
    } else {
        base_url.replacen("://api.", "://app.", 1)
    }
}

fn key(hosts: &[&str], var: Vars<'_>, files: &SettingsFiles) -> Result<Found<ApiKey>, String> {
    let (text, from) = if let Some(text) = var("WANDB_API_KEY") {
        (text, "WANDB_API_KEY".to_owned())
    } else if let Some(found) = netrc_files(var).iter().find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        let password = hosts.iter().find_map(|host| netrc_password(&text, host))?;
        Some((password, path.display().to_string()))
    }) {
        found
    } else if let Some(found) = files.get("api_key") {
        (found.value, found.from)
    } else {
        return Err(format!(
            "no key: neither WANDB_API_KEY nor ~/.netrc has one for {}",
            hosts[0]
        ));
    };
    match ApiKey::new(&text) {
        Ok(value) => Ok(Found { value, from }),
        Err(why) => Err(format!("the key in {from} is none: {why}")),
    }
}

fn netrc_files(var: Vars<'_>) -> Vec<PathBuf> {
    if let Some(path) = var("NETRC") {
        return vec![path.into()];
    }
    let Some(home) = home(var) else {
        return Vec::new();
    };
    vec![home.join(".netrc"), home.join("_netrc")]
}

fn home(var: Vars<'_>) -> Option<PathBuf> {
    var("HOME")
        .or_else(|| var("USERPROFILE"))
        .map(PathBuf::from)
}

/// The password for a machine, of words separated by blanks and line ends.
fn netrc_password(text: &str, host: &str) -> Option<String> {
    let lines = text
        .lines()
        .map(|line| line.split_once('#').map_or(line, |(before, _)| before));
    let mut words = lines.flat_map(str::split_whitespace);
    let mut is_ours = false;
    while let Some(word) = words.next() {
        match word {
            "machine" => is_ours = words.next() == Some(host),
            "default" => is_ours = false,
            "password" => {
                let password = words.next()?;
                if is_ours {
                    return Some(password.to_owned());
                }
            }
            _ => {}
        }
    }
    None
}

fn is_true(value: &str) -> bool {
    matches!(
        value.trim().to_lowercase().as_str(),
        "1" | "true" | "yes" | "on"
    )
}

/// Error: a name that the server takes for something else.
fn check_name(found: &Found<String>, forbidden: &[char]) -> Result<(), String> {
    let Found { value, from } = found;
    if value.trim().is_empty() || value.trim() != value || value.contains(forbidden) {
        let forbidden: Vec<_> = forbidden.iter().map(char::to_string).collect();
        return Err(format!(
            "{from}: `{value}` may not be empty, nor hold blanks at its ends or one of {}",
            forbidden.join(" ")
        ));
    }
    Ok(())
}

/// W&B's settings files: of the working directory, then of the user.
struct SettingsFiles(Vec<(PathBuf, String)>);

impl SettingsFiles {
    fn read(var: Vars<'_>) -> Self {
        let of_user = match var("WANDB_CONFIG_DIR") {
            Some(folder) => Some(PathBuf::from(folder)),
            None => home(var).map(|home| home.join(".config/wandb")),
        };
        let here = Path::new("wandb").to_owned();
        let folders = [Some(here), of_user].into_iter().flatten();
        let texts = folders.filter_map(|folder| {
            let path = folder.join("settings");
            let text = fs::read_to_string(&path).ok()?;
            Some((path, text))
        });
        Self(texts.collect())
    }

    /// `key = value` lines; there is one section only.
    fn get(&self, key: &str) -> Option<Found<String>> {
        self.0.iter().find_map(|(path, text)| {
            let value = text.lines().find_map(|line| {
                let (name, value) = line.split_once(['=', ':'])?;
                (name.trim() == key).then(|| value.trim().to_owned())
            });
            let value = value.filter(|value| !value.is_empty())?;
            let from = path.display().to_string();
            Some(Found { value, from })
        })
    }
}

/// Whether a user with these variables expects their runs at W&B: there is a key, and nothing says no.
pub fn is_expected(environment: &Environment) -> bool {
    let var: Vars<'_> = &|name| environment.get(name);
    let files = SettingsFiles::read(var);
    let is_on =
        mode(&WandbConfig::default(), var, &files).is_ok_and(|mode| mode.value != Mode::Disabled);
    is_on && Server::find(None, var, &files).is_ok_and(|server| server.key.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789012345678901234567890123456789";

    fn find(config: &WandbConfig, run: &OfRun, vars: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::find(config, run, &|name| of(vars, name))
    }

    fn of(vars: &[(&str, &str)], name: &str) -> Option<String> {
        let found = vars.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn the_config_wins_where_it_says_something() {
        let run = OfRun {
            project: Some("tpu-train".into()),
            ..OfRun::default()
        };
        let default = WandbConfig::default();
        let project = |config: &WandbConfig, run: &OfRun, vars: &[(&str, &str)]| {
            let found = find(config, run, vars).unwrap().project;
            format!("{} of {}", found.value, found.from)
        };
        let env = [("WANDB_PROJECT", "env")];
        assert_eq!(project(&default, &run, &[]), "tpu-train of default");
        assert_eq!(project(&default, &run, &env), "env of WANDB_PROJECT");
        let chosen = OfRun {
            project: Some("mine".into()),
            ..OfRun::default()
        };
        assert_eq!(project(&default, &chosen, &env), "mine of project");
        let config = WandbConfig {
            project: Some("kw".into()),
            ..WandbConfig::default()
        };
        assert_eq!(project(&config, &chosen, &env), "kw of kwargs.project");
    }

    #[test]
    fn a_key_comes_from_the_environment_then_netrc_then_a_settings_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name).to_str().unwrap().to_owned();
        let netrc = format!(
            "machine other login a password b\nmachine 127.0.0.1:80 # a comment\n login user password {}\n",
            KEY.replace('0', "n")
        );
        fs::write(path("netrc"), netrc).unwrap();
        fs::write(
            path("settings"),
            format!("[default]\napi_key = {}\n", KEY.replace('0', "s")),
        )
        .unwrap();
        let key = |vars: &[(&str, &str)]| {
            let mut vars = vars.to_vec();
            vars.push(("WANDB_BASE_URL", "http://127.0.0.1:80/"));
            let settings = find(&WandbConfig::default(), &OfRun::default(), &vars).unwrap();
            settings
                .server
                .key
                .map(|found| found.value.0.chars().next())
        };
        let (netrc, config) = (path("netrc"), path(""));
        let all = [
            ("WANDB_API_KEY", KEY),
            ("NETRC", &netrc),
            ("WANDB_CONFIG_DIR", &config),
        ];
        assert_eq!(key(&all), Ok(Some('0')));
        assert_eq!(key(&all[1..]), Ok(Some('n')));
        assert_eq!(key(&all[2..]), Ok(Some('s')));
        assert!(key(&[]).unwrap_err().contains("127.0.0.1:80"));
        let is_expected =
            |vars: &[(&str, &str)]| is_expected(&Environment::of(vars.iter().copied()));
        assert!(is_expected(&all[..1]));
        assert!(!is_expected(&[]));
        for off in [("WANDB_MODE", "disabled"), ("WANDB_DISABLED", "true")] {
            assert!(!is_expected(&[all[0], off]));
        }
    }

    #[test]
    fn a_key_is_shown_nowhere() {
        let settings = find(
            &WandbConfig::default(),
            &OfRun::default(),
            &[("WANDB_API_KEY", KEY)],
        )
        .unwrap();
        assert!(!format!("{settings:?}").contains(KEY));
        let key = settings.server.key.unwrap().value;
        assert_eq!(key.scrubbed(&format!("a {KEY} b")), "a *** b");
        assert!(key.authorization().starts_with("Basic YXBpOjAxMjM0"));
        for wrong in ["short", "with a blank in it, and long enough to be one"] {
            let vars = [("WANDB_API_KEY", wrong)];
            let settings = find(&WandbConfig::default(), &OfRun::default(), &vars).unwrap();
            let why = settings.server.key.unwrap_err();
            assert!(
                why.contains("WANDB_API_KEY") && !why.contains(wrong),
                "{why}"
            );
        }
    }

    #[test]
    fn modes_have_their_other_names_and_nothing_else_is_one() {
        let mode = |text| {
            let vars = [("WANDB_MODE", text)];
            let found = find(&WandbConfig::default(), &OfRun::default(), &vars);
            found.map(|settings| settings.mode.value)
        };
        assert_eq!(mode("run"), Ok(Mode::Online));
        assert_eq!(mode("dryrun"), Ok(Mode::Offline));
        assert_eq!(mode("disabled"), Ok(Mode::Disabled));
        let error = mode("sometimes").unwrap_err();
        assert!(error.starts_with("WANDB_MODE: `sometimes`"), "{error}");
    }

    #[test]
    fn people_look_where_programs_do_not_ask() {
        for (base, app) in [
            ("https://api.wandb.ai", "https://wandb.ai"),
            ("https://api.example.org/", "https://app.example.org"),
            ("http://127.0.0.1:80", "http://127.0.0.1:80"),
        ] {
            let vars = [("WANDB_BASE_URL", base)];
            let settings = find(&WandbConfig::default(), &OfRun::default(), &vars).unwrap();
            assert_eq!(settings.server.app_url, app);
        }
        for wrong in ["https://wandb.ai", "api.wandb.ai", "https://u:hunter2@x"] {
            let vars = [("WANDB_BASE_URL", wrong)];
            let error = find(&WandbConfig::default(), &OfRun::default(), &vars).unwrap_err();
            assert!(error.starts_with("WANDB_BASE_URL") && !error.contains("hunter2"));
        }
    }
}
