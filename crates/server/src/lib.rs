//! A Flowline server: the HTTP API over an engine and its store, live streams of events, API tokens, and the export of
//! spans. The `flowline` binary starts it ([`serve`]); everything about commands, settings and terminals is there.

mod exposition;
pub mod filter;
mod http;
pub mod otlp;
pub mod receipts;
pub mod serve;
pub mod token;
pub mod view;

/// What the API takes and answers, and what its clients must know of it.
pub mod api {
    pub use crate::http::locks::{held, left};
    pub use crate::http::request::LONGEST_WAIT;
    pub use crate::http::state::{read_scopes, state_entry, state_list};
}
