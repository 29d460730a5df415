//! How an engine runs. Every field has a default that needs no tuning.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::Tenant;
use flowline_core::limits::Limits;
use flowline_store::row::Retention;

use crate::quota::Quotas;
use crate::reconcile::Reconciling;

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
    /// How often to look for expired leases and due timers, besides the times that are known in advance.
    pub sweep: Duration,
    /// How long a stopping engine waits for running attempts before it gives them back.
    pub drain: Duration,
    /// How long ended runs are kept; `None` turns the removal off.
    pub retention: Option<Retention>,
    /// How often one engine of the store holds runs against their logs, and whether it mends what it finds. `None` for never.
    pub reconcile: Option<Reconciling>,
    /// How large payloads may be. Instances of one store should agree on them.
    pub limits: Limits,
    /// What tenants may have and start at most; nothing is limited by default.
    pub quotas: Quotas,
    /// The name of this instance in leases, events, logs and metrics. It must be unique: see [`instance_name`].
    pub instance: Arc<str>,
    /// What this engine does.
    pub role: InstanceRole,
}

/// Whether an engine runs steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceRole {
    /// Claims and runs jobs, recovers lost ones, retains.
    Work,
    /// Only carries inputs (start, cancel, send …) into runs.
    Operate,
}

/// Enough for steps that wait on others; the runtime's threads, not slots, bound those that compute.
const SLOTS: usize = 256;
/// What is taken of a host name: one label of a domain name has at most as many.
const HOST_CHARS: usize = 63;

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
            reconcile: None,
            limits: Limits::default(),
            quotas: Quotas::default(),
            instance: instance_name(None),
            role: InstanceRole::Work,
        }
    }
}

/// A name for an instance: this one, or host name and process id, and a few random characters. Containers often share both,
/// and a restarted instance must not be taken for the one before it.
pub fn instance_name(name: Option<&str>) -> Arc<str> {
    let unique = uuid::Uuid::now_v7().simple().to_string();
    let unique = &unique[unique.len() - 6..];
    match name {
        Some(name) => format!("{name}-{unique}").into(),
        None => format!("{}-{}-{unique}", host_name(), std::process::id()).into(),
    }
}

/// The host name, as far as the system tells it, as a part of a name.
fn host_name() -> String {
    let told = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let told = told.or_else(|| std::env::var("HOSTNAME").ok()).or_else(|| std::env::var("COMPUTERNAME").ok());
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '-' };
    let name: String = told.unwrap_or_default().trim().chars().map(plain).take(HOST_CHARS).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_named_after_host_and_process_and_are_told_apart_all_the_same() {
        let names = [instance_name(None), instance_name(None)];
        let process = format!("{}-{}-", host_name(), std::process::id());
        assert!(names.iter().all(|name| name.starts_with(&process)), "{names:?}");
        assert_ne!(names[0], names[1]);
        let named = [instance_name(Some("blue")), instance_name(Some("blue"))];
        assert!(named.iter().all(|name| name.starts_with("blue-")), "{named:?}");
        assert_ne!(named[0], named[1]);
    }
}
