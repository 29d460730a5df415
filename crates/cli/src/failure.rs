//! Why a command did not do what it was asked: the exit code, a stable word for machines, the message and the remedy.

use std::io;

use flowline::EngineError;
use flowline::core::decide::Refusal;
use flowline::core::definition::Diagnostics;
use flowline::store::StoreError;
use serde_json::{Value, json};

/// How a command ended, as its exit code tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Fine, or the run completed.
    Fine = 0,
    /// The run failed or was cancelled, or a check found something.
    Found = 1,
    /// Usage, a definition or an input.
    Usage = 2,
    /// The store or the environment.
    Store = 3,
    Interrupted = 130,
}

pub type Outcome = Result<Exit, CliError>;

#[derive(Debug)]
pub struct CliError {
    pub exit: Exit,
    /// Stable, for machines.
    pub code: &'static str,
    pub message: String,
    pub help: Option<String>,
    pub diagnostics: Option<Box<Diagnostics>>,
    /// Nobody reads the output any more: nothing is said.
    pub quiet: bool,
}

impl CliError {
    pub fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> CliError {
        CliError { exit, code, message: message.into(), help: None, diagnostics: None, quiet: false }
    }

    pub fn usage(message: impl Into<String>) -> CliError {
        CliError::new(Exit::Usage, "usage", message)
    }

    pub fn input(message: impl Into<String>) -> CliError {
        CliError::new(Exit::Usage, "input", message)
    }

    pub fn environment(message: impl Into<String>) -> CliError {
        CliError::new(Exit::Store, "environment", message)
    }

    pub fn no_such_run(run: &str) -> CliError {
        CliError::refusal("no-such-run", format!("there is no run {run}"))
    }

    /// Something that was understood and cannot be done, with the remedy of its kind.
    pub fn refusal(code: &'static str, message: impl Into<String>) -> CliError {
        let failure = CliError::new(Exit::Usage, code, message);
        match code {
            "no-such-run" => {
                failure.help("`flowline runs` lists them; check --tenant, and --store or --server")
            }
            "no-such-flow" => failure.help(
                "`flowline flows` lists them; to use a file, give its path (`flowline start ./order.yaml`)",
            ),
            "flow-retired" => failure.help("`flowline flows --versions` lists the hashes"),
            "no-such-token" => {
                failure.help("`flowline token list` lists them; check --tenant, and --store or --server")
            }
            "run-ended" => failure.help("`flowline retry RUN` retries an ended run as a new one"),
            "role" => failure.help("add --role; if the server requires tokens, use one that has the role"),
            "schema" => failure.help("fix the JSON, or the schema in the definition"),
            _ => failure,
        }
    }

    /// Not now, but soon.
    pub fn inbox_full(message: impl Into<String>) -> CliError {
        CliError::new(Exit::Store, "inbox-full", message)
            .help("send it again later; `flowline explain RUN` shows what the run is waiting for")
    }

    pub fn help(mut self, help: impl Into<String>) -> CliError {
        self.help = Some(help.into());
        self
    }

    pub fn definition(diagnostics: Diagnostics) -> CliError {
        let errors = diagnostics.errors().count();
        let count = if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") };
        let message = format!("{} can't run: {count}", diagnostics.file);
        let mut failure = CliError::new(Exit::Usage, "definition", message);
        failure.diagnostics = Some(Box::new(diagnostics));
        failure
    }

    pub fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message, "help": self.help });
        if let Some(diagnostics) = &self.diagnostics {
            error["diagnostics"] = diagnostics.to_json();
        }
        json!({ "error": error })
    }
}

/// Writing to stdout failed. A reader that went away (`| head`) is no fault.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> CliError {
        if error.kind() == io::ErrorKind::BrokenPipe {
            let mut failure = CliError::new(Exit::Fine, "closed", "the output was closed");
            failure.quiet = true;
            return failure;
        }
        CliError::environment(format!("can't write the output: {error}"))
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> CliError {
        let (exit, code, help) = match &error {
            StoreError::Unavailable(_) => (
                Exit::Store,
                "store-unavailable",
                Some("check --store (`flowline config` shows where it's set)"),
            ),
            StoreError::CannotWrite(_) => (
                Exit::Store,
                "store-cannot-write",
                Some("check the permissions and free space there, or name another store with --store"),
            ),
            StoreError::Missing(_) => (
                Exit::Store,
                "store-missing",
                Some("create one with `flowline run FILE`, or name an existing one with --store"),
            ),
            StoreError::InUse(_) => (
                Exit::Store,
                "store-in-use",
                Some(
                    "commands that only read (runs, show, events, explain, stats) still work. If `flowline serve` holds \
                     the store, use --server URL for all others",
                ),
            ),
            StoreError::Incompatible(_) => {
                (Exit::Store, "store-incompatible", Some("name another store with --store"))
            }
            StoreError::HalfMoved(_) => (Exit::Store, "store-half-moved", None),
            StoreError::Damaged(_) => {
                (Exit::Store, "store-damaged", Some("run `flowline doctor` for details; restore a backup"))
            }
            StoreError::WentBack(_) => (Exit::Store, "store-went-back", None),
            StoreError::Invalid(_) => (Exit::Usage, "invalid", None),
            _ => (Exit::Store, "store", None),
        };
        let failure = CliError::new(exit, code, error.to_string());
        match help {
            Some(help) => failure.help(help),
            None => failure,
        }
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> CliError {
        let text = error.to_string();
        match error {
            EngineError::Store(error) => error.into(),
            EngineError::Definition(diagnostics) => CliError::definition(*diagnostics),
            EngineError::Plan(_) => CliError::new(Exit::Usage, "definition", text),
            EngineError::NoSuchRun(run) => CliError::no_such_run(&run),
            EngineError::NotEnded(_) => CliError::input(text),
            EngineError::NoRetryInPlace(_) => CliError::refusal("invalid", text),
            EngineError::NoSuchFlow(_) | EngineError::NoSuchVersion { .. } => {
                CliError::refusal("no-such-flow", text)
            }
            EngineError::Retired(_) => CliError::refusal("flow-retired", text),
            EngineError::Refused(refusal) => refused(&refusal, text),
            EngineError::KeyConflict { .. } => CliError::new(Exit::Usage, "key-conflict", text),
            EngineError::Stopped => CliError::environment(text),
            _ => CliError::input(text),
        }
    }
}

fn refused(refusal: &Refusal, text: String) -> CliError {
    match refusal {
        Refusal::Ended(_) => CliError::refusal("run-ended", text),
        Refusal::NotAccepted { .. } => CliError::refusal("not-accepted", text),
        Refusal::Forbidden { .. } => CliError::refusal("role", text),
        Refusal::InboxFull => CliError::inbox_full(text),
        Refusal::OtherOutcome { .. } => CliError::refusal("outcome-conflict", text),
        Refusal::Expression { .. } => CliError::refusal("invalid", text),
        Refusal::TooCostly { .. } => CliError::refusal("too-costly", text),
        Refusal::Schema { .. } => CliError::refusal("schema", text),
        Refusal::Payload(_) => CliError::refusal("limit", text),
        _ => CliError::refusal("refused", text),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn the_page_lists_every_code() {
        let page = include_str!("../../../docs/cli.md");
        for made in [
            StoreError::Unavailable,
            StoreError::CannotWrite,
            StoreError::Missing,
            StoreError::InUse,
            StoreError::Incompatible,
            StoreError::HalfMoved,
            StoreError::Damaged,
            StoreError::WentBack,
            StoreError::Invalid,
        ] {
            let code = CliError::from(made(String::new())).code;
            assert!(page.contains(&format!("`{code}`")), "{code}");
        }
        let made = sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")));
        let calls = [
            "CliError::refusal(\"",
            "CliError::new(Exit::Usage, \"",
            "CliError::new(Exit::Store, \"",
            "CliError::new(Exit::Found, \"",
        ];
        let codes = calls.iter().flat_map(|call| made.split(call).skip(1));
        let codes: BTreeSet<&str> = codes.filter_map(|rest| rest.split('"').next()).collect();
        assert!(codes.len() > 20, "too few to be all: {codes:?}");
        for code in codes {
            assert!(page.contains(&format!("`{code}`")), "{code}");
        }
    }

    /// All code of a folder, without tests.
    fn sources(folder: &Path) -> String {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let read = |path: PathBuf| match path.is_dir() {
            true => sources(&path),
            false => std::fs::read_to_string(path).unwrap().split("#[cfg(test)]").next().unwrap().to_owned(),
        };
        entries.map(read).collect()
    }
}
