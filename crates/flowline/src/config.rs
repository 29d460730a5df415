//! How an engine runs. Every field has a default that needs no tuning.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::Tenant;
use flowline_store::row::Retention;

/// Settings of one instance.
#[derive(Debug, Clone)]
pub struct Config {
    /// Attempts that run at once in a queue that `queues` does not name.
    pub slots: usize,
    /// Attempts that run at once, by queue. With 0 the queue is not served.
    pub queues: BTreeMap<String, usize>,
    /// Serve one tenant only, or all.
    pub tenant: Option<Tenant>,
    /// How long a lease lasts without a heartbeat. A heartbeat is sent every third of it.
    pub lease: Duration,
    /// How often expired leases and due timers are looked for, beside the moments that are known ahead.
    pub sweep: Duration,
    /// How long a stopping engine waits for running attempts before it gives them back.
    pub drain: Duration,
    /// How long ended runs are kept; `None` turns the removal off.
    pub retention: Option<Retention>,
    /// The name of this instance in leases and events.
    pub instance: Arc<str>,
    /// What this engine does.
    pub role: Role,
}

/// Whether an engine runs steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Claims and runs jobs, recovers lost ones, retains.
    Work,
    /// Only carries inputs (start, cancel, send …) into runs.
    Operate,
}

/// Enough for steps that wait on others; the runtime's threads, not slots, bound those that compute.
const SLOTS: usize = 256;

impl Default for Config {
    fn default() -> Config {
        Config {
            slots: SLOTS,
            queues: BTreeMap::new(),
            tenant: None,
            lease: Duration::from_secs(30),
            sweep: Duration::from_secs(1),
            drain: Duration::from_secs(30),
            retention: Some(Retention::default()),
            instance: instance_name(),
            role: Role::Work,
        }
    }
}

/// Process id and randomness: two instances on one machine, or a restarted one, never share a name.
fn instance_name() -> Arc<str> {
    let unique = uuid::Uuid::now_v7().simple().to_string();
    format!("{}-{}", std::process::id(), &unique[unique.len() - 6..]).into()
}
