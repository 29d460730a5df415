//! Bugs planted on purpose, to show that the simulator and the checker would find them.
//!
//! This is their list, and the switch that turns one of them on for the current thread. The places that ask [`is`] are not
//! in the source: `crates/sim/planted.patch` adds them to the copy that `cargo xtask mutants` builds. Only that build turns
//! the feature `planted` on.

use std::cell::Cell;

macro_rules! bugs {
    ($($(#[doc = $what:literal])* $bug:ident,)*) => {
        /// A mistake that someone could make.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Bug {
            $($(#[doc = $what])* $bug,)*
        }

        impl Bug {
            pub const ALL: &'static [Bug] = &[$(Bug::$bug),*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Bug::$bug => stringify!($bug),)*
                }
            }

            /// What is wrong, in words.
            pub fn what(self) -> &'static str {
                match self {
                    $(Bug::$bug => concat!($($what),*).trim_ascii(),)*
                }
            }
        }
    };
}

bugs! {
    /// A commit that names a lease checks neither its token nor the run's version.
    NoFence,
    /// Lines are appended without a look at the lease.
    AppendWithoutFence,
    /// A lease is given up although a heartbeat has kept it meanwhile.
    ExpiryUnchecked,
    /// A lease is given up although lines of its attempt came into the log meanwhile.
    LinesUnchecked,
    /// An outcome that brings the first line of its attempt is written, though that line is in the log.
    FirstLineTwice,
    /// A commit lands on whatever version the run has.
    StaleState,
    /// After a conflict the cached state is trusted and only its version is taken over.
    CachedAfterConflict,
    /// A commit writes its events and, now and then, not its jobs.
    SplitCommit,
    /// A pause is applied to a run that is paused.
    InputTwice,
    /// An event name can be published again.
    EmitTwice,
    /// A failed attempt publishes what it declares.
    EmitsOnFailure,
    /// An all-of join fires on its first event.
    JoinOnFirstEvent,
    /// A step whose condition is false gets a job.
    SkippedRuns,
    /// A step that fails the run does not stop the others under `fail_fast`.
    FailFastIgnored,
    /// A failure under `on_failure: continue` fails the run.
    ContinueFails,
    /// A cancel is applied to a run that has ended.
    TerminalTwice,
    /// A run that could go on by an event from outside is ended.
    EndsTooSoon,
    /// A run whose last step was skipped is not ended.
    NeverEnds,
    /// A cancel leaves the run's jobs.
    CancelLeavesJobs,
    /// A retry takes the number of the attempt before it.
    AttemptReused,
    /// Lost leases are made good for ever.
    LostLeaseCapIgnored,
    /// A failed step has one try more than its policy allows.
    OneTryTooMany,
    /// A resumed run leaves its jobs held.
    ResumeForgetsHeld,
    /// What is queued in a paused run is not held.
    PausedRunGoesOn,
    /// The timer of a run's time-out is not set.
    TimerForgotten,
    /// A job can be claimed before it is due.
    TimerEarly,
    /// A number of the log is left out after a retry.
    SeqGap,
    /// Counters are not taken down when a run moves on.
    CountersStale,
    /// Retention trims runs that have not ended.
    RetentionTrimsLive,
    /// Retention goes by the engine's policy alone, whatever the definition says.
    OwnRetentionIgnored,
    /// A heartbeat is answered and does not keep the lease.
    HeartbeatIgnored,
    /// A job of a paused queue is handed to the instance that adds it.
    HandoffOnPausedQueue,
    /// A claim takes jobs of paused queues.
    ClaimOnPausedQueue,
    /// A claim for one tenant takes jobs of all.
    TenantLeak,
    /// A start of a run that is there replaces it.
    StartReplaces,
    /// The status says running while all that is left waits for a time.
    StatusIgnoresDelay,
    /// An instance claims as if none of its slots were taken.
    SlotsIgnored,
    /// Expired leases and due timers are not looked for.
    NoSweep,
    /// A start is acknowledged before its commit is known to have landed.
    AcknowledgedTooSoon,
    /// An event from outside is acknowledged and dropped where another input waits.
    SentEventDropped,
    // What the simulator found once, planted again: it must be able to find it still.
    /// A claim and a hand-over fill the same slot.
    SlotPromisedTwice,
    /// A delayed attempt whose start was written by a commit with an unknown outcome starts again.
    StartedAgain,
    /// Lines that went with an emit of unknown outcome are written again with the outcome of the attempt.
    LinesAgain,
    /// A lease that an attempt keeps survives the end of its run in the same commit.
    LeaseLeftAtEnd,
    /// The reason of a failed run is replaced by a later one.
    FailureReplaced,
    /// A completion that broke its promise is refused where it comes again.
    BrokenTwiceRefused,
    /// A pause of unknown outcome is repeated without asking.
    PauseRepeated,
    /// That an input changes nothing is told from memory, which another instance may have made old.
    ToldFromMemory,
    /// The input of a join holds what has been emitted when an attempt is claimed.
    InputAtClaim,
    /// An event without a payload is handed on as one with null.
    NothingAsNull,
    // Machines.
    /// A timer of a state that was left fires all the same.
    TimerOutlivesState,
    /// An event that comes again under its id is taken in again.
    EventTakenTwice,
    /// A guard reads the context that the run began with.
    GuardOnStaleContext,
    /// Actions do not wait for those before them.
    ActionsUnordered,
    /// The last event taken in has the first turn.
    InboxReversed,
    /// The next event has its turn while actions of the one before it run.
    TurnsOverlap,
    /// A transition that asks for a role is open to anyone.
    RoleIgnored,
    /// What waits in the inbox is forgotten when an action fails.
    InboxForgotten,
    /// The processing record of an event says that it is done while its actions run.
    ReceiptTooSoon,
    // Of machines too, and found once.
    /// An event whose id was made for it is taken in again where its commit was carried out twice.
    FreshIdTrusted,
    /// A delayed start is taken that can never begin.
    BeginUnchecked,
    /// An action waits for those of its `after` in later groups of the transition too, which wait for it: both are dropped.
    AfterAcrossGroups,
    // Reports of attempts that are over.
    /// A failure of an attempt whose lease was lost is taken for one that is in the log.
    LateFailureApplied,
    /// A report that is in the log is refused once its attempt is over.
    RecordedRefused,
    /// Another outcome of an attempt is taken for the one that is in the log.
    OtherOutcomeApplied,
    /// What attempts reported is forgotten when the log of their run is trimmed.
    ReportsForgotten,
    /// Once the log is trimmed, any outcome of an attempt is taken for the recorded one.
    OtherAfterTrim,
    /// A machine that is tried again in place does not apply the event that failed.
    RetryWithoutEvent,
    // Beside the log.
    /// A line says that a value was deleted, and it is still there.
    DeleteForgotten,
    /// A line sent again is in the log once, and changes key-value state again.
    StateChangedAgain,
    /// The key-value state of a run outlives its end where the definition clears it.
    StateLeftAtEnd,
    /// The duration in a terminal event comes from the engine's clock, not the store's.
    DurationGuessed,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Whether this bug is switched on in this thread.
pub fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Switches one bug on in this thread, or all off.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}
