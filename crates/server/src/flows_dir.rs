//! A folder of definitions: registered when the server starts, and while it is worked on whenever a file changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use flowline::core::Plan;
use flowline::core::definition::Format;
use flowline::{Engine, EngineError};

use crate::definition;
use crate::failure::{Exit, Failure};
use crate::output;

/// How often a folder is looked at for changes.
const LOOK: Duration = Duration::from_millis(500);

/// Registers every definition of a folder; none where one of them is wrong. Gives their number.
pub async fn register(engine: &Engine, folder: &Path) -> Result<usize, Failure> {
    let mut plans = Vec::new();
    for path in files(folder)?.into_keys() {
        plans.push(plan(&path)?);
    }
    let number = plans.len();
    for (plan, origin) in plans {
        engine.register_plan(plan.into(), Some(origin)).await?;
    }
    Ok(number)
}

/// Registers definitions again as their files change, for ever. What is wrong with one is said, and the last good one stays.
pub async fn follow(engine: &Engine, folder: &Path) {
    let mut seen = files(folder).unwrap_or_default();
    loop {
        tokio::time::sleep(LOOK).await;
        let Ok(now) = files(folder) else { continue };
        for path in now.keys().filter(|path| seen.get(*path) != now.get(*path)) {
            match reload(engine, path).await {
                Ok(flow) => output::note(&format!("{}: flow {flow} is registered", path.display())),
                Err(failure) => {
                    if let Some(diagnostics) = &failure.diagnostics {
                        output::note(&diagnostics.render(output::stderr_has_color()));
                    }
                    output::note(&format!("{}; the definition from before stays", failure.message));
                }
            }
        }
        seen = now;
    }
}

async fn reload(engine: &Engine, path: &Path) -> Result<String, Failure> {
    let (plan, origin) = plan(path)?;
    let flow = plan.flow.to_string();
    engine.register_plan(plan.into(), Some(origin)).await?;
    Ok(flow)
}

fn plan(path: &Path) -> Result<(Plan, String), Failure> {
    let read = definition::load(path)?;
    Ok((Plan::build(read.definition).map_err(EngineError::from)?, definition::origin(path)?))
}

/// The definition files of a folder, not of folders in it, and when each was changed.
fn files(folder: &Path) -> Result<BTreeMap<PathBuf, Option<SystemTime>>, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::new(
            Exit::Usage,
            "definition",
            format!("cannot read the folder {}: {error}", folder.display()),
        )
        .help("--flows names a folder with definition files")
    };
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let is_definition = path.to_str().is_some_and(|name| Format::of_path(name).is_some());
        if is_definition && path.is_file() && !is_hidden(&path) {
            let changed = path.metadata().and_then(|data| data.modified()).ok();
            files.insert(path, changed);
        }
    }
    Ok(files)
}

/// Files that begin with a dot, and our own settings.
fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with('.') || name == crate::settings::CONFIG_FILE
}
