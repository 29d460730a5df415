//! The binary, its server and its stores as users meet them: real processes, a module for each subject.
//!
//! `cargo test -p flowline-cli --test all http::` runs one of them; `cargo xtask test` runs each in a process of its own.

mod cli;
mod doctor;
mod examples;
mod faults;
mod fuzz;
mod http;
mod instances;
mod killed;
mod kit;
mod limits;
mod live;
mod machines;
mod moved;
mod old;
mod pages;
mod redis;
mod remote;
mod remote_cli;
mod scale;
mod trouble;
mod until_idle;
mod verified;
