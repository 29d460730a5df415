//! `flowline completions`: what a shell completes.

use clap_complete::Shell;

use crate::failure::{Exit, Outcome};
use crate::output;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  flowline completions bash > ~/.local/share/bash-completion/completions/flowline"
)]
pub struct Args {
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(args: Args, mut command: clap::Command) -> Outcome {
    // Into memory first: the generator panics where its output is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "flowline", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Exit::Fine)
}
