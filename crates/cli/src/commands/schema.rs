//! `flowline schema`: the format of definition files, for editors.

use flowline::core::definition::file_schema;

use crate::failure::{Exit, Outcome};
use crate::output;

/// Print the JSON Schema of definition files, for editors
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline schema > flowline.schema.json")]
pub struct Args {}

pub fn run() -> Outcome {
    let schema = file_schema();
    output::line(&serde_json::to_string_pretty(&schema).unwrap_or_else(|_| schema.to_string()))?;
    Ok(Exit::Fine)
}
