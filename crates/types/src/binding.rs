//! What a token, or a definition that was registered with it, is limited to.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The flows and queues that something is limited to. By default, to none of either: it's unbound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// Only these flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<Arc<[String]>>,
    /// Only these queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Arc<[String]>>,
}

impl Binding {
    pub fn is_unbound(&self) -> bool {
        self.flows.is_none() && self.queues.is_none()
    }

    pub fn allows_flow(&self, flow: &str) -> bool {
        self.flows.as_ref().is_none_or(|flows| flows.iter().any(|known| known == flow))
    }

    /// A queue can hold jobs of any flow, so whatever is bound to flows is limited to the queues that it's bound to as well.
    pub fn allows_queue(&self, queue: &str) -> bool {
        self.allowed_queues().is_none_or(|queues| queues.iter().any(|known| known == queue))
    }

    /// The queues it's limited to; all if `None`.
    pub fn allowed_queues(&self) -> Option<Arc<[String]>> {
        self.queues.clone().or_else(|| self.flows.as_ref().map(|_| Arc::default()))
    }
}
