//! The key-value state of a run, according to the `state` lines of its log.
//!
//! Only the scope `run`: nothing but the run's own steps writes it, and each change has a line. What runs share can also be
//! set from outside, and no log says so.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use flowline_core::event::Event;
use flowline_core::{Json, Time};
use flowline_store::StateValue;
use serde::Deserialize;

use super::Walk;
use crate::flow::FlowMap;

/// A value of key-value state. Only its digest is kept, because a log can hold a lot of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownValue {
    pub(crate) digest: u64,
    /// When it expires. According to the log, that's the latest: a line's timestamp is never before the store's clock.
    pub(crate) expires: Option<Time>,
}

impl KnownValue {
    fn new(value: &Json, expires: Option<Time>) -> KnownValue {
        let mut hasher = DefaultHasher::new();
        value.get().hash(&mut hasher);
        KnownValue { digest: hasher.finish(), expires }
    }

    pub(crate) fn of(value: &StateValue) -> KnownValue {
        KnownValue::new(&value.value, value.expires)
    }
}

/// The `data` of a `state` event.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    operation: String,
    scope: String,
    key: String,
    value: Option<Json>,
    ttl_ms: Option<u64>,
}

impl Walk {
    pub(super) fn state_line(&mut self, flow: &FlowMap, event: &Event) {
        let line = event.data.as_ref().and_then(|data| data.to::<Line>().ok());
        let Some(line) = line.filter(|line| line.scope == "run") else { return };
        match (line.operation.as_str(), line.value) {
            ("set", value) => {
                // Null is a value, but is read as `None`.
                let value = value.unwrap_or_else(Json::null);
                // Older builds didn't repeat in the line what the definition says.
                let ttl = line.ttl_ms.map(Duration::from_millis).or(flow.time_to_live());
                let value = KnownValue::new(&value, ttl.map(|ttl| event.ts + ttl));
                self.values.insert(line.key, value);
            }
            ("delete", _) => drop(self.values.remove(&line.key)),
            _ => {}
        }
    }
}
