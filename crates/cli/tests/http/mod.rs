//! The HTTP API over real sockets: every route against the schema that it declares, and who may do what.

mod access;
mod attacks;
mod audit;
mod authors;
mod budgets;
mod contract;
mod deploy;
mod hostile;
mod killed;
mod logs;
mod machines;
mod metrics;
mod pages;
mod quotas;
mod refused;
mod registry;
mod state;
mod traces;
mod verbs;
mod walk;
