//! Settings and where each comes from: a flag, an environment variable, a key of `flowline.toml`, or the default, in
//! this order. Every setting has one name in all of them, and is one entry of the [`table`].

mod kinds;
mod spec;
mod table;

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use flowline::core::limits::Limits;
use flowline::reconcile::Reconciling;
use flowline::store::row::Retention;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::failure::CliError;

pub use kinds::{Auth, Color, LogFormat};
pub use spec::{GlobalSettings, ServeSettings, Spec, UnattendedSettings, WorkSettings};
use table::NAMES;
pub use table::Settings;

/// The file read where `--config` names none.
pub const CONFIG_FILE: &str = "flowline.toml";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingSource {
    Flag,
    Env(String),
    File(PathBuf),
    Default,
}

impl SettingSource {
    /// How far from the command: what is nearer counts.
    fn distance(&self) -> u8 {
        match self {
            SettingSource::Flag => 0,
            SettingSource::Env(_) => 1,
            SettingSource::File(_) => 2,
            SettingSource::Default => 3,
        }
    }
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingSource::Flag => f.write_str("flag"),
            SettingSource::Env(name) => write!(f, "environment {name}"),
            SettingSource::File(path) => write!(f, "file {}", path.display()),
            SettingSource::Default => f.write_str("default"),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Setting<T> {
    pub value: T,
    pub source: SettingSource,
}

impl Settings {
    /// Reads them for a command. `config` names a settings file that must be there.
    pub fn read(matches: &ArgMatches, config: Option<&Path>) -> Result<Settings, CliError> {
        let (path, file) = read_file(config)?;
        let mut settings = Settings::look_up(&Lookup { matches, path, file })?;
        if settings.store.source == SettingSource::Flag && settings.server.source == SettingSource::Flag {
            return Err(CliError::usage("--store and --server can't be combined")
                .help("drop one of them: a server has its own store"));
        }
        let (keep_events, keep_runs) = (&mut settings.keep_events, &settings.keep_runs);
        if keep_events.value > keep_runs.value {
            if keep_events.source != SettingSource::Default {
                let what = "keep-events (--events) is longer than keep-runs (--runs)";
                return Err(CliError::usage(format!("{what}, but a run's events can't outlive the run"))
                    .help("keep runs at least as long as their events"));
            }
            keep_events.value = keep_runs.value;
        }
        // Unless they are set, the other limits follow this one.
        let usual = Limits::of_payload(settings.max_payload.value);
        for (limit, usual) in
            [(&mut settings.max_join, usual.join), (&mut settings.max_context, usual.context)]
        {
            if limit.source == SettingSource::Default {
                limit.value = usual;
            }
        }
        settings.limits().check().map_err(CliError::usage)?;
        Ok(settings)
    }

    pub fn retention(&self) -> Retention {
        Retention { events: self.keep_events.value, runs: self.keep_runs.value }
    }

    pub fn reconciling(&self) -> Option<Reconciling> {
        self.reconcile.value.map(|mode| Reconciling { mode, every: self.reconcile_every.value })
    }

    pub fn limits(&self) -> Limits {
        let (payload, join) = (self.max_payload.value, self.max_join.value);
        let (log, run_log) = (self.max_log.value, self.max_run_log.value);
        Limits { payload, join, context: self.max_context.value, log, run_log }
    }

    /// The server to ask, unless a store is named nearer to the command.
    pub fn server(&self) -> Option<&str> {
        let nearer = self.server.source.distance() <= self.store.source.distance();
        self.server.value.as_deref().filter(|_| nearer)
    }
}

/// The places that a setting can be in.
struct Lookup<'a> {
    matches: &'a ArgMatches,
    path: Option<PathBuf>,
    file: SettingsFile,
}

impl Lookup<'_> {
    /// The first place that has the setting decides; what stands there must be right.
    fn find<T>(&self, spec: &Spec, read: fn(&str) -> Result<T, String>) -> Result<Setting<T>, CliError> {
        let (name, variable) = (spec.name, spec.variable());
        let from_env = env::var(&variable).ok().filter(|text| !text.is_empty());
        let (text, source) = match (spec.given(self.matches), from_env, self.file.get(name), &self.path) {
            (Some(text), ..) => (text, SettingSource::Flag),
            (None, Some(text), ..) => (text, SettingSource::Env(variable)),
            (None, None, Some(FileValue(text)), Some(path)) => {
                (text.clone(), SettingSource::File(path.clone()))
            }
            _ => (spec.default.to_owned(), SettingSource::Default),
        };
        match read(&text) {
            Ok(value) => Ok(Setting { value, source }),
            Err(problem) => Err(CliError::usage(format!("{name} (from {source}): {problem}"))),
        }
    }
}

type SettingsFile = BTreeMap<FileKey, FileValue>;

fn read_file(named: Option<&Path>) -> Result<(Option<PathBuf>, SettingsFile), CliError> {
    let path = named.unwrap_or(Path::new(CONFIG_FILE));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((None, SettingsFile::default()));
        }
        Err(error) => {
            return Err(CliError::usage(format!("can't read {}: {error}", path.display()))
                .help("name an existing settings file with --config, or drop --config"));
        }
    };
    let file = toml::from_str(&text).map_err(|error| {
        CliError::usage(format!("{}: {}", path.display(), error.to_string().trim_end()))
            .help("`flowline config` lists the keys")
    })?;
    Ok((Some(path.to_owned()), file))
}

/// A key of the settings file: the name of a setting, and nothing else.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileKey(String);

impl std::borrow::Borrow<str> for FileKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for FileKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FileKey, D::Error> {
        let key = String::deserialize(deserializer)?;
        if NAMES.contains(&key.as_str()) {
            Ok(FileKey(key))
        } else {
            Err(D::Error::unknown_field(&key, &NAMES))
        }
    }
}

/// A value of the settings file, as a flag would have it: `[queues]` with `mail = 2` is `mail=2`.
#[derive(Debug)]
struct FileValue(String);

/// `[quotas]` can have a table for a tenant.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum FileEntry {
    Number(usize),
    Table(BTreeMap<String, usize>),
}

impl<'de> Deserialize<'de> for FileValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FileValue, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = FileValue;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a whole number, or a table of numbers")
            }
            fn visit_str<E>(self, text: &str) -> Result<FileValue, E> {
                Ok(FileValue(text.to_owned()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<FileValue, E> {
                Ok(FileValue(number.to_string()))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FileValue, A::Error> {
                let mut parts = Vec::new();
                while let Some((name, entry)) = map.next_entry::<String, FileEntry>()? {
                    match entry {
                        FileEntry::Number(number) => parts.push(format!("{name}={number}")),
                        FileEntry::Table(table) => {
                            parts.extend(table.iter().map(|(key, number)| format!("{name}.{key}={number}")));
                        }
                    }
                }
                Ok(FileValue(parts.join(",")))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline::core::limits::format_bytes;

    fn default_of(name: &str) -> &'static str {
        table::SPECS.iter().find(|spec| spec.name == name).expect("a setting").default
    }

    #[test]
    fn the_default_limits_are_those_of_the_engine() {
        let Limits { payload, join, context, log, run_log } = Limits::default();
        let names = ["max-payload", "max-join", "max-context", "max-log", "max-run-log"];
        assert_eq!(names.map(default_of), [payload, join, context, log, run_log].map(format_bytes));
    }

    #[test]
    fn a_settings_file_holds_text_numbers_and_tables_under_known_names() {
        let read = |text| toml::from_str::<SettingsFile>(text).map_err(|error| error.to_string());
        let file =
            read("lease = \"5s\"\nslots = 8\n[queues]\nmail = 2\nreports = 1\n").expect("a settings file");
        let values = ["lease", "slots", "queues"].map(|name| file[name].0.as_str());
        assert_eq!(values, ["5s", "8", "mail=2,reports=1"]);
        let quotas = read("[quotas]\nruns = 8\n[quotas.acme]\nruns = 2\n").expect("a settings file");
        assert_eq!(quotas["quotas"].0, "acme.runs=2,runs=8");
        let unknown = read("slots = 8\nslotz = 8\n").expect_err("no such setting");
        assert!(unknown.contains("line 2") && unknown.contains("unknown field `slotz`"), "{unknown}");
        assert!(read("slots = true\n").expect_err("no such value").contains("a whole number"));
    }
}
