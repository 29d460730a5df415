//! The `flowline` binary: Flowline on the command line.

mod bench;
mod commands;
mod definition;
mod failure;
mod findings;
mod flows_dir;
mod happened;
mod log;
mod open;
mod operator;
mod output;
mod progress;
mod settings;
mod signals;
mod trouble;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main()
}
