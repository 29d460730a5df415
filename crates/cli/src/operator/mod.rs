//! What commands do with runs, written once: in a store that the command opens itself ([`StoreOperator`]), or at a server
//! that it asks ([`ServerOperator`]). Commands know only [`Operator`], so both give the same answers.
//!
//! What a server refuses becomes the same [`CliError`] that the store's side has for it, so that scripts need not know which of
//! the two they speak to.

mod lock;
mod log;
mod refusals;
mod server;
mod store;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flowline::core::decide::Sender;
use flowline::core::{Json, Plan, RunId, RunKey};
use flowline::explain::Explanation;
use flowline::stats::Stats;
use flowline::store::row::Pause;
use flowline::store::{EventQuery, QueueRow, ReceiptQuery};
use flowline::{Applied, RetryFrom, StateOwner, StateQuery};
use flowline_api::access::{MadeToken, NewToken, RotateToken, TokenRow};
use flowline_api::events::{ReceiptList, SentView};
use flowline_api::explain::VerifyReport;
use flowline_api::flows::{FlowChanged, FlowView};
use flowline_api::locks::HeldLock;
use flowline_api::runs::{Retried, RunList, RunStart, RunView, Started};
use flowline_api::state::{StateEntry, StateList, StateScopes};
use flowline_server::filter::RunFilter;
use flowline_server::view::Versions;
use serde::{Deserialize, Serialize};

use crate::failure::CliError;

pub use lock::{OperatorLock, lost};
pub use log::{LogTail, RunLog};
pub use server::ServerOperator;
pub use store::StoreOperator;

/// What can be done from outside, wherever the runs are.
#[async_trait(?Send)]
pub trait Operator {
    /// Starts a run of the flow that `start` names, or of a definition in a file, which is registered first.
    async fn start(&self, start: RunStart, file: Option<FlowFile<'_>>) -> Result<Started, CliError>;
    /// Sends an event, and waits until a machine has handled it if told so.
    async fn send(&self, event: ExternalEvent, wait: Option<Duration>) -> Result<SentView, CliError>;
    async fn steer(&self, run: &RunKey, steering: Steering) -> Result<Applied, CliError>;
    /// Starts an ended run again, as a new one.
    async fn retry(&self, run: &RunKey, from: RetryFrom<'_>) -> Result<Retried, CliError>;
    async fn delete(&self, run: &RunKey) -> Result<(), CliError>;
    /// Deletes a page of the runs that have ended; with `dry_run` only tells which they are.
    async fn delete_page(&self, page: &RunsPage, dry_run: bool) -> Result<DeletedPage, CliError>;
    async fn runs(&self, page: &RunsPage) -> Result<RunList, CliError>;
    async fn show(&self, run: &RunKey) -> Result<RunView, CliError>;
    async fn log(&self, run: RunKey, query: EventQuery) -> Result<RunLog, CliError>;
    async fn explain(&self, run: &RunKey) -> Result<Explanation, CliError>;
    async fn receipts(&self, query: ReceiptQuery) -> Result<ReceiptList, CliError>;
    async fn stats(&self, question: &StatsQuestion) -> Result<Stats, CliError>;
    /// Checks the runs of the tenant against their logs, or those of all tenants.
    async fn verify(&self, all_tenants: bool) -> Result<VerifyReport, CliError>;

    async fn flows(&self, versions: Versions) -> Result<Vec<FlowView>, CliError>;
    /// Chooses the version that new runs use.
    async fn activate(&self, flow: &str, version: &str) -> Result<FlowChanged, CliError>;
    async fn retire(&self, flow: &str) -> Result<FlowChanged, CliError>;

    async fn queues(&self) -> Result<Vec<QueueRow>, CliError>;
    async fn pause_queue(&self, queue: &str, pause: Pause) -> Result<(), CliError>;

    async fn locks(&self) -> Result<Vec<HeldLock>, CliError>;
    /// A lock to acquire, extend or release.
    async fn lock(&self, name: &str, ttl: Duration) -> Result<OperatorLock, CliError>;

    /// Scopes that hold a value.
    async fn scopes(&self) -> Result<StateScopes, CliError>;
    async fn values(&self, owner: &StateOwner, query: StateQuery) -> Result<StateList, CliError>;
    async fn value(&self, owner: &StateOwner, key: &str) -> Result<Option<StateEntry>, CliError>;
    async fn set_value(
        &self,
        owner: &StateOwner,
        key: &str,
        value: Json,
        ttl: Option<Duration>,
    ) -> Result<(), CliError>;
    /// Whether there was one.
    async fn delete_value(&self, owner: &StateOwner, key: &str) -> Result<bool, CliError>;

    async fn create_token(&self, new: NewToken) -> Result<MadeToken, CliError>;
    async fn tokens(&self) -> Result<Vec<TokenRow>, CliError>;
    /// Makes a token that replaces another.
    async fn rotate_token(&self, id: &str, rotate: RotateToken) -> Result<MadeToken, CliError>;
    async fn revoke_token(&self, id: &str) -> Result<(), CliError>;
}

/// A checked definition, and the file that it is in.
#[derive(Debug)]
pub struct FlowFile<'a> {
    pub plan: Arc<Plan>,
    pub path: &'a Path,
}

/// What is done to one run from outside.
#[derive(Debug)]
pub enum Steering {
    Cancel { reason: Option<String> },
    Pause,
    Resume,
    Complete { result: Json },
    Fail { error: String },
}

/// An event from outside.
#[derive(Debug)]
pub struct ExternalEvent {
    pub to: EventTarget,
    pub name: String,
    pub payload: Json,
    pub sender: Sender,
    /// Idempotency key.
    pub key: Option<String>,
}

/// Where an event goes.
#[derive(Debug)]
pub enum EventTarget {
    Run(RunKey),
    /// The run of a business key, which is started if it doesn't exist.
    Key {
        flow: String,
        key: String,
        input: Json,
    },
}

/// A page of the runs that a filter lets through.
#[derive(Debug, Clone, Default)]
pub struct RunsPage {
    pub filter: RunFilter,
    pub limit: Option<u16>,
    pub cursor: Option<String>,
    /// The total is left out, which some filters make expensive.
    pub without_total: bool,
}

/// Runs that were deleted, or would be.
#[derive(Debug, Deserialize)]
pub struct DeletedPage {
    pub items: Vec<DeletedRun>,
    /// The cursor of the next page.
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletedRun {
    pub run_id: RunId,
    pub flow_name: Arc<str>,
    pub status: flowline::core::Status,
}

/// Which figures.
#[derive(Debug)]
pub struct StatsQuestion {
    pub flow: Option<String>,
    /// How far back; all there is by default.
    pub since: Option<Duration>,
    /// Width of the time buckets.
    pub bucket: Duration,
    pub steps: bool,
}
