//! The members of an event's `data` that the checker reads.

use std::sync::Arc;

use flowline_core::Time;
use flowline_core::event::{Event, EventType};
use serde::Deserialize;
use serde::de::IgnoredAny;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WalkedData {
    pub(super) name: Option<String>,
    pub(super) cause: Option<String>,
    pub(super) code: Option<String>,
    pub(super) delay_ms: Option<u64>,
    pub(super) start_at: Option<Time>,
    pub(super) retry_of: Option<IgnoredAny>,
    pub(super) reason: Option<String>,
    pub(super) inherited: bool,
    pub(super) by: Option<IgnoredAny>,
    pub(super) error: Option<String>,
    pub(super) step: Option<Arc<str>>,
    pub(super) duration: Option<u64>,
    // Of machines.
    pub(super) status: Option<String>,
    pub(super) number: Option<u32>,
    pub(super) event_id: Option<String>,
    pub(super) roles: Vec<String>,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) state: Option<String>,
    pub(super) event: Option<String>,
    pub(super) timer: Option<usize>,
    pub(super) action: Option<String>,
    pub(super) transition: Option<u32>,
    pub(super) choice: usize,
    pub(super) stays: bool,
    pub(super) at: Option<Time>,
}

impl WalkedData {
    /// What can't be read counts as missing, and the rules report that.
    pub(super) fn read(event: &Event) -> WalkedData {
        match (&event.data, event.kind) {
            // A step can put anything there.
            (_, EventType::Log | EventType::State | EventType::StepStarted) | (None, _) => {
                WalkedData::default()
            }
            (Some(data), _) => data.to().unwrap_or_default(),
        }
    }
}

/// Which cap a failed attempt counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureCap {
    /// The attempt itself failed.
    Try,
    /// Its worker is gone.
    Lost,
    /// Its worker gave it back: no cap.
    Released,
}

impl WalkedData {
    pub(super) fn cause(&self) -> FailureCap {
        match self.cause.as_deref() {
            Some("lease_lost") => FailureCap::Lost,
            Some("released") => FailureCap::Released,
            _ => FailureCap::Try,
        }
    }
}
