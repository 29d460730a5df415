//! The `flowline` binary: Flowline on the command line.

mod base;
mod bench;
mod bench_events;
mod bench_http;
mod cli;
mod definition;
mod exposition;
mod failure;
mod findings;
mod flows_dir;
mod follow;
mod happened;
mod http;
mod log;
mod open;
mod otlp;
mod output;
mod progress;
mod receipts;
mod settings;
mod signals;
mod target;
mod token;
mod trouble;
mod view;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
