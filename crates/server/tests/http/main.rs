//! The HTTP API over real sockets: every route against the schema that it declares, and who may do what.

mod access;
mod contract;
mod logs;
mod metrics;
mod pages;
mod served;
mod traces;
