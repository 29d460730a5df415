//! A folder of definitions: registered when the server starts, and while it is worked on whenever a file changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use flowline::core::Plan;
use flowline::core::definition::Format;
use flowline::registry;
use flowline::{Engine, EngineError};

use crate::definition;
use crate::failure::{CliError, Exit};
use crate::output;

/// How often a folder is looked at for changes.
const LOOK: Duration = Duration::from_millis(500);

/// A folder whose definitions are registered.
#[derive(Debug)]
pub struct FlowFolder {
    folder: PathBuf,
    /// The files when they were last looked at.
    seen: Files,
    /// The flow that each good file defines.
    flows: BTreeMap<PathBuf, String>,
}

/// The definition files of a folder, each with what changes when it is saved.
type Files = BTreeMap<PathBuf, (Option<SystemTime>, u64)>;

impl FlowFolder {
    /// Registers every definition of a folder, as an instance does that starts up; none where one of them is wrong.
    pub async fn register(engine: &Engine, folder: &Path) -> Result<FlowFolder, CliError> {
        let mut found =
            FlowFolder { folder: folder.to_owned(), seen: files(folder)?, flows: BTreeMap::new() };
        let mut definitions = Vec::new();
        for path in found.seen.keys() {
            let definition = definition::load(path)?.definition;
            refuse_twice(&found.flows, path, &definition.flow)?;
            found.flows.insert(path.clone(), definition.flow.clone());
            definitions.push((path.clone(), definition, definition::origin(path)?));
        }
        for (path, definition, origin) in definitions {
            let plan = engine.register_at_start(definition, Some(origin)).await?;
            say_if_old(engine, &path, &plan).await?;
            say_unserved(engine, &path, &plan);
        }
        Ok(found)
    }

    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Registers definitions again as their files are saved, and retires the flows of files that go away, for ever. What is
    /// wrong with a file is said, and its last good definition stays.
    pub async fn follow(mut self, engine: &Engine) {
        loop {
            tokio::time::sleep(LOOK).await;
            let Ok(now) = files(&self.folder) else { continue };
            if now != self.seen {
                self.take_up(engine, now).await;
            }
        }
    }

    async fn take_up(&mut self, engine: &Engine, now: Files) {
        let seen = std::mem::replace(&mut self.seen, now);
        let before = self.flows.clone();
        self.flows.retain(|path, _| self.seen.contains_key(path));
        // A file that was refused because of another may be fine without it.
        let is_due =
            |path: &&PathBuf| seen.get(*path) != self.seen.get(*path) || !self.flows.contains_key(*path);
        let due: Vec<PathBuf> = self.seen.keys().filter(is_due).cloned().collect();
        for path in due {
            match self.reload(engine, &path).await {
                Ok(flow) => output::note(&format!("{}: flow {flow} is registered", path.display())),
                Err(failure) => {
                    if let Some(diagnostics) = &failure.diagnostics {
                        output::drawing(&diagnostics.render(output::stderr_has_color()));
                    }
                    output::note(&format!("{}; keeping the previous definition", failure.message));
                }
            }
        }
        for (path, flow) in before {
            if !self.flows.values().any(|kept| *kept == flow) {
                self.retire(engine, &path, &flow).await;
            }
        }
    }

    async fn reload(&mut self, engine: &Engine, path: &Path) -> Result<String, CliError> {
        let definition = definition::load(path)?.definition;
        let flow = definition.flow.clone();
        refuse_twice(&self.flows, path, &flow)?;
        let plan = Plan::build(definition).map_err(EngineError::from)?;
        let plan = engine.register_plan(plan.into(), Some(definition::origin(path)?)).await?;
        self.flows.insert(path.to_owned(), flow.clone());
        say_unserved(engine, path, &plan);
        Ok(flow)
    }

    async fn retire(&self, engine: &Engine, path: &Path, flow: &str) {
        let why = match self.seen.contains_key(path) {
            true => format!("{} doesn't define flow {flow} any more", path.display()),
            false => format!("{} is gone", path.display()),
        };
        match engine.retire(flow).await {
            Ok(()) => output::note(&format!(
                "{why}: flow {flow} is retired: existing runs continue, and no new ones start"
            )),
            Err(error) => output::note(&format!("{why}, but flow {flow} couldn't be retired: {error}")),
        }
    }
}

/// Refuses a second file with the same flow: which of the two would run is a matter of luck.
fn refuse_twice(flows: &BTreeMap<PathBuf, String>, path: &Path, flow: &str) -> Result<(), CliError> {
    match flows.iter().find(|(other, name)| *other != path && *name == flow) {
        None => Ok(()),
        Some((other, _)) => Err(defined_twice(flow, other, path)),
    }
}

pub fn defined_twice(flow: &str, one: &Path, other: &Path) -> CliError {
    let text = format!("{} and {} both define flow {flow:?}", one.display(), other.display());
    CliError::new(Exit::Usage, "definition", text).help("rename one of the flows, or remove one of the files")
}

/// A start can't turn a flow back, and whoever expects that is told.
async fn say_if_old(engine: &Engine, path: &Path, plan: &Plan) -> Result<(), CliError> {
    let (path, flow, hash) = (path.display(), &plan.flow, &plan.hash[..12.min(plan.hash.len())]);
    match registry::latest(engine.store(), engine.tenant(), flow).await {
        Ok(latest) if latest.hash == plan.hash => {}
        Ok(_) => output::note(&format!(
            "warning: {path}: the store has a newer version of flow {flow}, which new runs use; \
             `flowline flows activate {flow} {hash}` switches back to this one"
        )),
        Err(EngineError::Retired(_)) => output::note(&format!(
            "warning: {path}: flow {flow} is retired; `flowline flows activate {flow} {hash}` brings it back"
        )),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn say_unserved(engine: &Engine, path: &Path, plan: &Plan) {
    for unserved in engine.unserved(plan) {
        output::note(&format!("warning: {}: {unserved}", path.display()));
    }
}

/// The definition files of a folder, not of folders in it.
fn files(folder: &Path) -> Result<Files, CliError> {
    let cannot = |error: std::io::Error| {
        CliError::new(
            Exit::Usage,
            "definition",
            format!("can't read directory {}: {error}", folder.display()),
        )
        .help("--flows takes a directory of definition files")
    };
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let is_definition = path.to_str().is_some_and(|name| Format::of_path(name).is_some());
        if is_definition && path.is_file() && !is_hidden(&path) {
            let saved = path.metadata().map(|data| (data.modified().ok(), data.len())).unwrap_or_default();
            files.insert(path, saved);
        }
    }
    Ok(files)
}

/// Files that begin with a dot, and our own settings.
fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with('.') || name == crate::settings::CONFIG_FILE
}
