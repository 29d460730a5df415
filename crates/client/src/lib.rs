//! Talks to a Flowline server: a [`Client`] with a method for everything the API does, and the loop of a remote
//! [`Worker`].
//!
//! ```no_run
//! use flowline_client::{Client, Worker};
//! use serde_json::json;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new("http://127.0.0.1:7400")?.token("TOKEN")?;
//! Worker::new(client)
//!     .queue("depot")
//!     .handler(|job| async move {
//!         job.log("packing").await;
//!         Ok(json!({ "packed": job.input() }))
//!     })
//!     .run()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! It knows nothing of stores and engines: what it needs of a job comes with the job.

pub mod client;
pub mod error;
pub mod follow;
pub mod job;
pub mod lock;
mod transport;
pub mod verbs;
pub mod worker;

pub use client::Client;
pub use error::ClientError;
pub use flowline_api as api;
pub use flowline_types as types;
pub use follow::EventStream;
pub use hyper::Method;
pub use job::{Job, JobError};
pub use lock::{RemoteLock, RemoteLockGuard};
pub use worker::Worker;
