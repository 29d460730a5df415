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
    hide_from_others();
    commands::main()
}

/// Keeps other processes of this user, such as the programs of command steps, from reading this one's environment and
/// memory (`/proc/PID/environ`): tokens and passwords are in there. Programs that it starts aren't affected.
fn hide_from_others() {
    // A system that can't do it is no reason not to run.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
}
