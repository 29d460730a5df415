//! Durable workflows, on one file or on many instances.
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
//!
//! Where to look:
//!
//! - **Describe** what runs: [`Flow`] and [`Machine`] in Rust; [`core::definition::read`] reads a file. [`Step`] is what the
//!   code of a step sees.
//! - **Run** it: [`Engine::open`] or [`Engine::on`], [`Engine::run`], [`RunHandle::wait`], [`Engine::send`],
//!   [`Engine::subscribe`], [`Engine::state`], [`Engine::lock`]. [`Engine::remote`] serves workers in other processes, and
//!   [`runner`] is for runners of your own.
//! - **Operate** it: [`Engine::cancel`], [`Engine::pause`], [`Engine::retry`]; on any open store, [`explain`], [`stats`],
//!   [`stuck`], [`verify`], [`reconcile`], [`retain`] and [`relocate`]; [`meters`] and [`trace`] for what watches.

mod aside;
mod attempt;
mod author;
mod config;
mod drive;
mod engine;
pub mod explain;
mod flow;
mod lease_ref;
mod ledger;
pub mod lock;
pub mod machine;
pub mod meters;
mod operate;
mod pace;
mod plans;
pub mod position;
mod presence;
mod quota;
pub mod reconcile;
pub mod registry;
pub mod relocate;
pub mod remote;
pub mod retain;
mod retry;
pub mod runner;
mod seal;
mod send;
mod slots;
mod standing;
mod start;
mod state;
pub mod stats;
mod step;
pub mod stuck;
mod subscribe;
pub mod trace;
pub mod verify;

pub use aside::Aside;
pub use config::{Config, InstanceRole, instance_name};
pub use engine::{Engine, EngineBuilder, EngineError};
pub use flow::{All, Any, Event, Flow, FlowBuilder, StepInput, StepOutput};
pub use flowline_core as core;
pub use flowline_core::definition::{Backoff, OnFailure, Priority, Retain, Retry};
pub use flowline_core::limits::Limits;
pub use flowline_store as store;
pub use flowline_store::{StateOwner, StatePage, StateQuery, StateScope, StateValue};
pub use lease_ref::{LeaseRef, NoLeaseRef};
pub use lock::{LockError, LockGuard, NamedLock};
pub use machine::{ActionInput, Machine};
pub use operate::{Applied, RunHandle, RunOutcome};
pub use plans::Plans;
pub use quota::{Quota, Quotas};
pub use retry::RetryFrom;
#[cfg(feature = "http")]
pub use runner::http::HttpConfig;
pub use seal::Seal;
pub use send::{SendRequest, Sent};
pub use start::StartRequest;
pub use state::StateHandle;
pub use step::{Level, Step, StepError};
pub use subscribe::{EventSubscription, Source};

/// For the crates of this workspace alone: the engine's parts as the simulator drives them, and what the server and the
/// command line share with the engine. Nothing here is part of the crate's API, and any version may change it.
#[doc(hidden)]
pub mod internal {
    pub use crate::attempt::{ASK_AGAIN, Attempt, FLUSH, Launch, Record, out_of_time_error, started_data};
    pub use crate::drive::{Driver, DriverMessage, DriverOrder, Reply};
    pub use crate::ledger::{InputEntry, InputOutcome};
    pub use crate::operate::refused;
    pub use crate::presence::{PresentEngine, engines};
    pub use crate::retry::again;
    pub use crate::slots::{Slots, Tokens};
    pub use crate::start::{check_start, input_digest, opened};
    pub use crate::state::check_key;
    pub use crate::subscribe::Hint;
}

/// The Rust of the guides compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/rust.md")]
struct Guides;
