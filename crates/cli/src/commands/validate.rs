//! `flowline validate`: what is wrong with definition files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flowline::core::Definition;
use flowline::core::definition::Severity;
use serde_json::{Value, json};

use super::CommandContext;
use crate::definition;
use crate::failure::{CliError, Exit, Outcome};
use crate::flows_dir;
use crate::output;

/// Check definition files and report every problem
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline validate flows/*.yaml --strict")]
pub struct Args {
    /// Definition files: YAML, TOML or JSON
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
}

pub fn run(context: &CommandContext, args: Args) -> Outcome {
    let (mut items, mut errors, mut warnings) = (Vec::new(), 0u64, 0u64);
    let mut flows: BTreeMap<String, &Path> = BTreeMap::new();
    for path in &args.files {
        let file = path.display().to_string();
        let diagnostics = match definition::check(path) {
            Ok(Ok(read)) => {
                if !context.json {
                    output::line(&format!("{file}: {}", in_short(&read.definition)))?;
                }
                if let Some(other) =
                    flows.insert(read.definition.flow.clone(), path).filter(|other| other != path)
                {
                    let failure = flows_dir::defined_twice(&read.definition.flow, other, path);
                    errors += 1;
                    items.push(of_file("duplicate-flow", &file, &failure));
                    output::note(&format!("error: {}", failure.message));
                }
                read.warnings
            }
            Ok(Err(wrong)) => wrong,
            // One file that cannot be read does not hide what is wrong with the others.
            Err(failure) => {
                errors += 1;
                items.push(of_file("unreadable", &file, &failure));
                output::note(&format!("error: {}", failure.message));
                continue;
            }
        };
        for item in &diagnostics.items {
            *if item.severity == Severity::Error { &mut errors } else { &mut warnings } += 1;
        }
        if let Value::Array(found) = diagnostics.to_json() {
            items.extend(found.into_iter().map(|mut item| {
                item["file"] = json!(file);
                item
            }));
        }
        if !context.json && !diagnostics.is_empty() {
            output::drawing(&diagnostics.render(output::stderr_has_color()));
        }
    }
    let counts = format!("{}, {}", output::count(errors, "error"), output::count(warnings, "warning"));
    if context.json {
        output::json(&items)?;
    } else {
        output::line(&format!("{}: {counts}", output::count(args.files.len() as u64, "file")))?;
    }
    let bad = errors > 0 || args.strict && warnings > 0;
    Ok(if bad { Exit::Usage } else { Exit::Fine })
}

/// `machine expense, 6 states, 4 events, 5 actions`
fn in_short(definition: &Definition) -> String {
    let count = |n: usize, what: &str| output::count(n as u64, what);
    let parts = match &definition.machine {
        None => count(definition.steps.len(), "step"),
        Some(machine) => [
            count(machine.states.len(), "state"),
            count(definition.accepts.len(), "event"),
            count(definition.steps.len(), "action"),
        ]
        .join(", "),
    };
    format!("{} {}, {parts}", definition.kind(), definition.flow)
}

/// What is wrong with a file as a whole.
fn of_file(code: &str, file: &str, failure: &CliError) -> Value {
    json!({
        "severity": "error", "code": code, "message": failure.message,
        "line": null, "column": null, "place": "", "help": failure.help, "file": file,
    })
}
