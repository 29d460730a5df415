//! Decisions and definitions, a module for each subject: `cargo test -p flowline-core --test all flows::`.

#[macro_use]
mod scenario;

mod any_flow;
mod attempts;
mod budgets;
mod definitions;
mod definitions_any_input;
mod flows;
mod golden;
mod inputs;
mod limits;
mod machines;
mod operations;
