//! Definition files: from a path to a checked definition, with what is wrong shown where it stands.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use flowline::EngineError;
use flowline::core::decide::check_input;
use flowline::core::definition::{Diagnostics, Format, Read, read};
use flowline::core::limits::{self, Limits};
use flowline::core::{Json, Plan};

use crate::failure::{CliError, Exit};
use crate::output;

/// Reads a definition for a command that needs it whole. Warnings go to stderr.
pub fn load(path: &Path) -> Result<Read, CliError> {
    let read = check(path)?.map_err(CliError::definition)?;
    if !read.warnings.is_empty() {
        output::drawing(read.warnings.render(output::stderr_has_color()).trim_end());
    }
    Ok(read)
}

/// Reads a definition; the inner error is what is wrong with it, the outer that it cannot be read at all.
pub fn check(path: &Path) -> Result<Result<Read, Diagnostics>, CliError> {
    let format = format(path)?;
    Ok(read(&path.display().to_string(), &text(path)?, format))
}

/// What the API calls the language of a definition file.
pub fn media_type(path: &Path) -> Result<&'static str, CliError> {
    Ok(match format(path)? {
        Format::Json => "application/json",
        Format::Yaml => "application/yaml",
        Format::Toml => "application/toml",
    })
}

fn format(path: &Path) -> Result<Format, CliError> {
    let name = path.display().to_string();
    Format::of_path(&name).ok_or_else(|| {
        CliError::new(Exit::Usage, "definition", format!("{name} isn't a definition file"))
            .help("a definition file ends in .yaml, .yml, .toml or .json")
    })
}

/// The plan of a definition that a run with this input can be started from.
pub fn plan(read: Read, input: &Json, limits: Limits) -> Result<Arc<Plan>, CliError> {
    let plan = Plan::build(read.definition).map_err(EngineError::from)?;
    check_input(&plan, input, limits).map_err(EngineError::Refused)?;
    Ok(Arc::new(plan))
}

/// The folder that the commands of a definition run in.
pub fn origin(path: &Path) -> Result<String, CliError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = folder
        .canonicalize()
        .map_err(|error| CliError::environment(format!("{}: {error}", folder.display())))?;
    folder.into_os_string().into_string().map_err(|folder| {
        CliError::usage(format!("the name of directory {folder:?} isn't UTF-8"))
            .help("move the definition elsewhere")
    })
}

pub fn text(path: &Path) -> Result<String, CliError> {
    let cannot = |error: std::io::Error| {
        CliError::new(Exit::Usage, "definition", format!("can't read {}: {error}", path.display()))
            .help("check the path; it's relative to the current directory")
    };
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(limits::DEFINITION_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() > limits::DEFINITION_BYTES {
        let text = format!(
            "{} is larger than {} bytes, the limit for a definition",
            path.display(),
            limits::DEFINITION_BYTES
        );
        return Err(CliError::new(Exit::Usage, "limit", text));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        CliError::new(
            Exit::Usage,
            "definition",
            format!("{} isn't UTF-8, starting at byte {at}", path.display()),
        )
    })
}
