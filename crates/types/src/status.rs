//! Where a run is in its life, and which jobs go first.

use crate::words;

words! {
    /// The status of a run.
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum Status {
        /// A job is queued or leased.
        Running = "running",
        /// Only timers, delays or external events.
        Waiting = "waiting",
        /// Nothing new is claimed until it is resumed.
        Paused = "paused",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

impl Status {
    pub fn is_terminal(self) -> bool {
        matches!(self, Status::Completed | Status::Failed | Status::Cancelled)
    }
}

words! {
    /// Which of the queued jobs is claimed first: urgent before high, normal and low.
    #[derive(Default)]
    #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
    pub enum Priority {
        Low = "low",
        #[default]
        Normal = "normal",
        High = "high",
        Urgent = "urgent",
    }
}
