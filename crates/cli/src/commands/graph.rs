//! `flowline graph`: a flow or a machine drawn.

use std::path::PathBuf;

use clap::ValueEnum;
use flowline::core::definition::{dot, graph, mermaid};

use super::CommandContext;
use crate::definition;
use crate::failure::{Exit, Outcome};
use crate::output;

/// Draw a flow or a machine as Mermaid, DOT or JSON
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline graph order.yaml --format dot | dot -Tsvg > order.svg")]
pub struct Args {
    /// Definition file: YAML, TOML or JSON
    file: PathBuf,
    /// Output format; --json is short for --format json
    #[arg(long, value_enum, default_value_t = Format::Mermaid)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Mermaid,
    Dot,
    Json,
}

pub fn run(context: &CommandContext, args: Args) -> Outcome {
    let read = definition::load(&args.file)?;
    let format = if context.json { Format::Json } else { args.format };
    match format {
        Format::Mermaid => output::line(mermaid(&read.definition).trim_end())?,
        Format::Dot => output::line(dot(&read.definition).trim_end())?,
        Format::Json => output::json(&graph(&read.definition))?,
    }
    Ok(Exit::Fine)
}
