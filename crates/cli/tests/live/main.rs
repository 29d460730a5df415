//! Live events and the listener: real servers, many clients, slow ones and hostile ones.
//!
//! Times are printed and never asserted.
#![cfg(unix)]

mod beside;
mod client;
mod elsewhere;
mod follow;
mod hostile;
#[allow(dead_code)]
mod http;
mod many;
mod reading;
mod ready;
#[allow(dead_code)]
mod served;
#[allow(dead_code)]
#[path = "../instances/server.rs"]
mod server;
mod tls;
mod watched;
