//! Durable flows, from one file or on many instances.
//!
//! A flow is steps wired by events. [`Flow`] describes one in Rust with typed steps; a YAML, TOML or JSON file describes
//! the same thing. An [`Engine`] runs flows: it carries inputs to the pure `decide` of `flowline-core`, makes each
//! decision durable in one commit of a store, and runs the jobs that follow. A crash at any moment loses nothing:
//! what was committed goes on, what was not is tried again.
//!
//! ```no_run
//! use flowline::{Engine, Flow, Step, StepError, event};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order { cents: u32 }
//! #[derive(Serialize, Deserialize)]
//! struct Charged { receipt: String }
//! event!(Order = "order.placed", Charged = "order.charged");
//!
//! async fn charge(step: Step, order: Order) -> Result<Charged, StepError> {
//!     Ok(Charged { receipt: format!("{} for {}", step.idempotency_key(), order.cents) })
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let flow = Flow::new("fulfil-order").input::<Order>().step("charge", charge).build()?;
//! let engine = Engine::open("flowline.db").flow(&flow).start().await?;
//! let run = engine.run(&flow, Order { cents: 1900 }).idempotency_key("order-42").await?;
//! println!("{:?}", run.wait().await?);
//! engine.stop().await;
//! # Ok(())
//! # }
//! ```

pub mod attempt;
pub mod config;
pub mod drive;
pub mod engine;
pub mod explain;
pub mod flow;
pub mod lease_ref;
pub mod ledger;
pub mod lock;
pub mod machine;
pub mod meters;
pub mod operate;
mod pace;
pub mod plans;
pub mod position;
pub mod presence;
pub mod reconcile;
pub mod registry;
pub mod relocate;
pub mod remote;
pub mod retain;
pub mod retry;
pub mod runner;
pub mod send;
pub mod slots;
mod standing;
pub mod start;
pub mod state;
pub mod stats;
pub mod step;
pub mod stuck;
pub mod subscribe;
pub mod trace;
pub mod verify;

pub use config::{Config, Role, instance_name};
pub use engine::{Engine, EngineBuilder, EngineError};
pub use flow::{All, Any, Event, Flow};
pub use flowline_core as core;
pub use flowline_core::definition::{Backoff, OnFailure, Priority, Retain, Retry};
pub use flowline_core::limits::Limits;
pub use flowline_store as store;
pub use flowline_store::{StateOwner, StatePage, StateQuery, StateScope, StateValue};
pub use lease_ref::LeaseRef;
pub use lock::{LockError, LockGuard, NamedLock};
pub use machine::{ActionInput, Machine};
pub use operate::{RunHandle, RunOutcome};
pub use retry::RetryFrom;
#[cfg(feature = "http")]
pub use runner::http::HttpConfig;
pub use send::{SendRequest, Sent};
pub use start::StartRequest;
pub use state::StateHandle;
pub use step::{Level, Step, StepError};
pub use subscribe::{Source, Subscription};

/// The Rust of the guides compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/rust.md")]
struct Guides;
