//! The crate through its public API, a module for each subject: `cargo test -p flowline --test all engine::`.

mod beside;
mod commands;
mod costly;
mod engine;
mod example_machines;
mod examples;
mod http;
mod keys;
mod kit;
mod locks;
mod machines;
mod reconciled;
mod remote;
mod retained;
mod tried_again;
