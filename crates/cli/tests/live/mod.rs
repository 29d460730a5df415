//! Live events and the listener: real servers, many clients, slow ones and hostile ones.
//!
//! Times are printed and never asserted.
#![cfg(unix)]

mod beside;
mod client;
mod elsewhere;
mod follow;
mod hostile;
mod http;
mod many;
mod reading;
mod ready;
mod served;
mod tls;
mod watched;
