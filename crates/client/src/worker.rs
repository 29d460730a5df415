//! The loop of a remote worker: claims jobs while it has free slots, runs them, keeps their leases alive and reports
//! outcomes.
//!
//! At most one request of each kind is in flight: a long poll for work, a heartbeat, a report. Outcomes that become
//! ready during a report go into the next one, which also asks for new jobs. An attempt is acknowledged after a moment,
//! unless its outcome is reported first. An attempt that the server calls lost is stopped.

mod attempt;
mod rounds;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use flowline_types::Json;
use serde::Serialize;

use crate::client::Client;
use crate::error::ClientError;
use crate::job::{Job, JobError};
use flowline_api::work as wire;

use rounds::Rounds;

/// The future of one attempt.
type Work = Pin<Box<dyn Future<Output = Result<Json, JobError>> + Send>>;
type Handler = Arc<dyn Fn(Job) -> Work + Send + Sync>;
type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A remote worker: configure it, then [run](Worker::run) it.
pub struct Worker {
    client: Client,
    name: String,
    queues: Vec<String>,
    slots: usize,
    with_state: bool,
    drain: Duration,
    handler: Option<Handler>,
    stop: Option<Stop>,
}

impl Worker {
    /// A worker with one slot, no queue and a generated name.
    pub fn new(client: Client) -> Worker {
        Worker {
            client,
            name: format!("worker-{}-{:08x}", std::process::id(), fastrand::u32(..)),
            queues: Vec::new(),
            slots: 1,
            with_state: false,
            drain: Duration::from_secs(30),
            handler: None,
            stop: None,
        }
    }

    /// Takes jobs of this queue; call it again for more queues.
    pub fn queue(mut self, queue: &str) -> Worker {
        self.queues.push(queue.to_owned());
        self
    }

    /// The name in leases and events. No two workers should have the same.
    pub fn name(mut self, name: &str) -> Worker {
        self.name = name.to_owned();
        self
    }

    /// Attempts that run at once.
    pub fn slots(mut self, slots: usize) -> Worker {
        self.slots = slots.max(1);
        self
    }

    /// Loads the key-value state of its run with each job.
    pub fn with_state(mut self) -> Worker {
        self.with_state = true;
        self
    }

    /// How long a stopping worker waits for running jobs before it gives them back.
    pub fn drain(mut self, drain: Duration) -> Worker {
        self.drain = drain;
        self
    }

    /// Runs this function for each job. What it returns is the step's result.
    pub fn handler<F, T, W>(mut self, handler: F) -> Worker
    where
        F: Fn(Job) -> W + Send + Sync + 'static,
        W: Future<Output = Result<T, JobError>> + Send + 'static,
        T: Serialize,
    {
        self.handler = Some(Arc::new(move |job| {
            let work = handler(job);
            Box::pin(async move {
                let value = work.await?;
                Json::of(&value).map_err(|error| JobError::new(error).never().code("invalid_payload"))
            })
        }));
        self
    }

    /// Stops when this future is ready: claims no more jobs, waits for running ones, gives back the rest.
    pub fn until(mut self, stop: impl Future<Output = ()> + Send + 'static) -> Worker {
        self.stop = Some(Box::pin(stop));
        self
    }

    /// Runs until it's told to stop, or the server refuses it.
    pub async fn run(self) -> Result<(), ClientError> {
        let stop = self.stop.unwrap_or_else(|| Box::pin(std::future::pending()));
        let handler = self.handler.unwrap_or_else(|| {
            Arc::new(|_| {
                Box::pin(async { Err(JobError::new("this worker has no handler").code("no_runner")) })
            })
        });
        let ask = wire::ClaimRequest {
            worker: self.name,
            queues: self.queues,
            limit: 1,
            wait_ms: wire::WAIT_MS,
            with_state: self.with_state,
        };
        Rounds::new(self.client, ask, self.slots, self.drain, handler).run(stop).await
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({} for {:?})", self.name, self.queues)
    }
}
