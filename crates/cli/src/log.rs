//! The log of a process that serves or works: one line per event on stderr, for people or for machines.
//!
//! Only the commands that call [`start`] have one. There, what would be said to people ([`crate::output::note`]) becomes
//! lines of the log when machines read it, so that every line of stderr is JSON.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, fmt};

use crate::output;
use crate::settings::LogFormat;

/// Set once the log is for machines.
static JSON: AtomicBool = AtomicBool::new(false);

/// Whether `dev` or something that runs unattended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Pretty, unless told otherwise.
    ForPeople,
    /// Pretty on a terminal.
    ByTerminal,
}

/// Starts the log. Called once.
pub fn start(filter: &Targets, format: LogFormat, habit: Habit) {
    let json = match format {
        LogFormat::Json => true,
        LogFormat::Pretty => false,
        LogFormat::Auto => habit == Habit::ByTerminal && !io::stderr().is_terminal(),
    };
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(output::stderr_has_color());
    let lines = if json {
        lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
    } else {
        lines.compact().boxed()
    };
    // A second log is not started; the first goes on.
    if tracing_subscriber::registry().with(lines.with_filter(filter.clone())).try_init().is_ok() {
        JSON.store(json, Ordering::Relaxed);
    }
}

/// Whether every line of stderr is JSON.
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}
