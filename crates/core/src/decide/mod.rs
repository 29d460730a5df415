//! The one decision: an input and the present state in, events and jobs out.
//!
//! [`decide`] is pure. It never sees a sequence number, a lease or a clock; what it needs beyond the state (payloads for
//! a condition, which jobs are leased) it asks for by returning [`Decided::Missing`], and the caller asks again with
//! them in [`Known`]. Every event that it makes is applied through the one fold, so the state that it returns is the
//! fold of the log by construction. Every input names itself ((step, attempt), event name, …): one that was applied
//! before gives [`Decided::Applied`], which is how an unknown outcome is resolved.

mod attempt;
mod draft;
mod machine;
mod outside;
mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::budget::Budget;
use crate::definition::Priority;
use crate::event::{AttemptOf, EventType, NewEvent, PayloadSlot};
use crate::expr::EvaluationError;
use crate::ids::RunId;
use crate::json::Json;
use crate::limits::{self, Limits};
use crate::plan::Plan;
use crate::receipt::ReceiptChange;
use crate::report::ReportDigest;
use crate::run::RunState;
use crate::schema::SchemaError;
use crate::time::Time;

use draft::Draft;
pub use machine::{PastEvent, ReceivedEvent, Standing, TriedAgain};

/// Something that happens to a run.
#[derive(Debug, Clone)]
pub enum DecideInput {
    /// A run starts.
    Start(Box<Start>),
    /// A delayed attempt was claimed.
    Started { step: u32, attempt: u32, data: Json },
    /// An attempt succeeded. The emits become visible with it.
    Done { step: u32, attempt: u32, result: Json, emits: Vec<(String, Json)> },
    /// An attempt failed.
    Failed { step: u32, attempt: u32, failure: AttemptFailure },
    /// An attempt's lease expired, or its holder gave it back.
    LeaseLost { step: u32, attempt: u32, released: bool },
    /// A step emits an event in the middle of an attempt.
    EmitNow { step: u32, attempt: u32, name: String, payload: Json },
    /// An external event. A machine recognizes a repeated one by its id.
    External { name: String, payload: Json, event_id: Option<String>, sender: Sender },
    /// A timer of a machine's state is due: the one that was set under this number.
    TimerDue { timer: u32, number: u32, due: Time },
    /// A machine's delayed start is due.
    Begin,
    /// The run's timeout has passed.
    TimedOut,
    /// An operator cancels the run.
    Cancel { reason: Option<String> },
    /// An operator pauses the run.
    Pause,
    /// An operator resumes the run.
    Resume,
    /// An operator ends the run.
    Finish(Finish),
    /// Checks again whether anything is left to do (a repair after damage).
    Revisit,
}

impl DecideInput {
    /// Whether it can be told from the state that it was applied, whatever came after. An input that cannot must not be
    /// repeated without asking: a pause whose outcome is unknown could undo a resume that followed it.
    pub fn names_itself(&self) -> bool {
        !matches!(self, DecideInput::Pause | DecideInput::Resume | DecideInput::Finish(_))
    }
}

/// Who sends an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sender {
    pub user: Option<String>,
    pub roles: Vec<String>,
    /// Who sends it on behalf of that user, if it's someone else.
    pub sent_by: Option<String>,
}

/// A run to be started.
#[derive(Debug, Clone)]
pub struct Start {
    pub input: Json,
    pub labels: BTreeMap<String, String>,
    /// One key makes one run.
    pub idempotency_key: Option<String>,
    /// What tells a repeated start from another one under the same key; empty without one.
    pub input_digest: String,
    /// Not before this moment.
    pub at: Option<Time>,
    pub priority: Priority,
    /// The ended run that this one repeats.
    pub retry_of: Option<RunId>,
    /// What it takes over from the retried run, in the order of that log: an `any` join depends on it.
    pub inherited: Vec<Inherited>,
    /// Where the repeated run of a machine stood; none where this one begins anew.
    pub standing: Option<Box<Standing>>,
}

impl Start {
    /// A start at once, from the beginning.
    pub fn new(input: Json) -> Start {
        Start {
            input,
            labels: BTreeMap::new(),
            idempotency_key: None,
            input_digest: String::new(),
            at: None,
            priority: Priority::Normal,
            retry_of: None,
            inherited: Vec::new(),
            standing: None,
        }
    }
}

/// Something that a retry takes over from the retried run.
#[derive(Debug, Clone)]
pub enum Inherited {
    /// An event: an external one, or one from this attempt of a step that later completed.
    Emit { of: Option<(Arc<str>, u32)>, name: String, payload: Json },
    /// A completed step.
    Completed { step: Arc<str>, attempt: u32, result: Json },
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptFailure {
    pub error: String,
    pub code: Option<String>,
    pub stack: Option<String>,
    pub retry: Retryable,
}

/// What the attempt itself says of trying again. The step's policy has the last word, except over `Never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retryable {
    ByPolicy,
    Never,
    /// By policy, but after this long.
    After(Duration),
}

#[derive(Debug, Clone)]
pub enum Finish {
    Completed { result: Json },
    Failed { error: String },
}

/// What the caller knows about the run besides its state.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub payloads: BTreeMap<PayloadSlot, Json>,
    /// Steps whose jobs are leased, if the caller looked.
    pub leased: Option<BTreeSet<u32>>,
    /// Whether the run has accepted an event with this id, if the caller looked.
    pub receipts: BTreeMap<String, bool>,
    /// What the log says about an attempt that is over, if the caller looked.
    pub attempt: Option<(AttemptOf, AttemptLog)>,
}

impl Known {
    /// Takes what was found where a decision asked for it.
    pub fn learn(&mut self, learned: Learned) {
        match learned {
            Learned::Payloads(payloads) => self.payloads.extend(payloads),
            Learned::Leases(leased) => self.leased = Some(leased),
            Learned::Receipt(event_id, found) => drop(self.receipts.insert(event_id, found)),
            Learned::Attempt(of, log) => self.attempt = Some((of, log)),
        }
    }
}

/// What is recorded of an attempt's reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptLog {
    /// Its events of the types in [`ReportDigests::KINDS`], with their `data`.
    ///
    /// [`ReportDigests::KINDS`]: crate::report::ReportDigests::KINDS
    Kept(Vec<(EventType, Json)>),
    /// Retention has removed the log; what is left of its reports.
    Trimmed(Vec<ReportDigest>),
    /// An older build has removed the log, and left nothing.
    Forgotten,
}

/// The run and the moment that a decision is about.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    pub run: &'a RunId,
    /// When the run was created; `now` at its start.
    pub created_at: Time,
    pub now: Time,
    /// What is new must keep them; what the run holds already need not.
    pub limits: Limits,
}

/// What `decide` came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Decided {
    Decision(Box<Decision>),
    /// The input was applied before; there is nothing to write.
    Applied,
    /// The input can never apply; there is nothing to write.
    Refused(Refusal),
    /// Ask again once [`Known`] has learned this.
    Missing(Missing),
}

/// What is to be written, all of it in one commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub events: Vec<NewEvent>,
    /// The fold of the log after these events.
    pub state: RunState,
    pub add: Vec<AddJob>,
    /// Jobs to drop, by attempt, which must not be leased.
    pub drop: Vec<(Job, u32)>,
    /// Changes to the receipts of a machine's events.
    pub receipts: Vec<ReceiptChange>,
    pub others: OtherJobs,
    /// Why the run failed or will fail, in the commit where that is settled.
    pub failure: Option<(String, Option<Arc<str>>)>,
    /// Payloads that these events carry, by address.
    pub payloads: BTreeMap<PayloadSlot, Json>,
}

/// A job to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddJob {
    pub job: Job,
    pub attempt: u32,
    pub priority: Priority,
    pub due: Time,
    /// Not to be claimed until the run is resumed.
    pub held: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    Step(u32),
    /// The run's timeout.
    RunTimeout,
    /// The delayed start of a machine.
    Begin,
    /// A timer of a machine's state. Its attempt is the number that it was set under.
    Timer(u32),
}

/// What happens to the run's jobs that the decision doesn't name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OtherJobs {
    #[default]
    Leave,
    Drop,
    Hold,
    Release,
}

/// What a decision needs and was not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    Payloads(Vec<PayloadSlot>),
    Leases,
    /// Whether the run has accepted an event with this id.
    Receipt(String),
    /// What the log says of an attempt that is over.
    Attempt(AttemptOf),
}

/// What the caller found for a [`Missing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Learned {
    /// A payload that isn't there counts as null.
    Payloads(Vec<(PayloadSlot, Json)>),
    Leases(BTreeSet<u32>),
    Receipt(String, bool),
    Attempt(AttemptOf, AttemptLog),
}

/// Why an input can never apply. The text can be shown as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error("the run hasn't started")]
    NotStarted,
    #[error("the run has ended ({0})")]
    Ended(crate::run::Status),
    #[error("attempt {attempt} of step {step:?} isn't the current one")]
    StaleAttempt { step: Arc<str>, attempt: u32 },
    /// The attempt is over, and was reported in another way.
    #[error("attempt {attempt} of step {step:?} was already reported with another outcome: it {recorded}")]
    OtherOutcome { step: Arc<str>, attempt: u32, recorded: String },
    /// Retention has removed what would show whether the attempt was reported in this way.
    #[error("attempt {attempt} of step {step:?} is over, and retention has removed its report")]
    ReportsTrimmed { step: Arc<str>, attempt: u32 },
    #[error("{flow:?} doesn't accept event {event:?}{}", accepted_list(.accepts))]
    NotAccepted { flow: Arc<str>, event: String, accepts: Vec<String> },
    #[error("event {event:?} requires the role {}", roles.join(" or "))]
    Forbidden { event: String, roles: Vec<String> },
    #[error("the run's inbox is full ({} events are pending); send it again later", limits::INBOX)]
    InboxFull,
    #[error("{problem}")]
    Expression { problem: String },
    /// An expression or a schema was stopped: it takes more than one may.
    #[error("{problem}")]
    TooCostly { problem: String },
    #[error("an event for a machine needs an id")]
    Unnamed,
    #[error("{what} doesn't match its schema at {problem}")]
    Schema { what: String, problem: String },
    #[error("step {step:?} doesn't declare that it emits {event:?}; add it to `emits`")]
    Undeclared { step: Arc<str>, event: String },
    #[error(transparent)]
    Payload(#[from] crate::json::JsonError),
}

fn accepted_list(accepts: &[String]) -> String {
    match accepts {
        [] => "; its definition accepts no events".to_owned(),
        names => format!("; it accepts {}", names.join(", ")),
    }
}

/// Whether a run of this plan could start with this input, asked before there is anything to write to.
pub fn check_input(plan: &Plan, input: &Json, limits: Limits) -> Result<(), Refusal> {
    check_input_within(plan, input, limits, &Budget::default())
}

fn check_input_within(plan: &Plan, input: &Json, limits: Limits, budget: &Budget) -> Result<(), Refusal> {
    input.clone().within("the input", limits.payload())?;
    check_input_schema(plan, input, budget)
}

fn check_input_schema(plan: &Plan, input: &Json, budget: &Budget) -> Result<(), Refusal> {
    match &plan.input {
        Some(schema) => {
            schema.check_in(input, budget).map_err(|problem| unfit("the input".to_owned(), problem))
        }
        None => Ok(()),
    }
}

/// Whether a run of this plan could ever take this event from this sender, asked before there is a run.
pub fn check_event(
    plan: &Plan,
    name: &str,
    payload: &Json,
    sender: &Sender,
    limits: Limits,
    budget: &Budget,
) -> Result<(), Refusal> {
    let event = known_event(plan, name)?;
    if let Some(machine) = &plan.machine {
        machine
            .may_send(event, &sender.roles)
            .map_err(|roles| Refusal::Forbidden { event: name.to_owned(), roles })?;
    }
    check_payload(plan, event, name, payload, limits, budget)
}

/// The number of an external event that runs of this plan accept: the definition lists it and, for a machine, a state
/// handles it.
fn known_event(plan: &Plan, name: &str) -> Result<u32, Refusal> {
    let takes = |event: &u32| {
        plan.events[*event as usize].accepted.is_some()
            && plan.machine.as_ref().is_none_or(|machine| machine.answers(*event))
    };
    plan.event_index(name).filter(takes).ok_or_else(|| {
        let names = plan.definition.accepts.keys();
        let accepts = names.filter(|name| plan.event_index(name).is_some_and(|event| takes(&event)));
        let (flow, event) = (plan.flow.clone(), name.to_owned());
        Refusal::NotAccepted { flow, event, accepts: accepts.cloned().collect() }
    })
}

/// Whether the payload of an external event is within its limit and matches its schema.
fn check_payload(
    plan: &Plan,
    event: u32,
    name: &str,
    payload: &Json,
    limits: Limits,
    budget: &Budget,
) -> Result<(), Refusal> {
    let what = format!("event {name:?}");
    payload.clone().within(&what, limits.payload())?;
    match &plan.events[event as usize].accepted {
        Some(Some(schema)) => schema.check_in(payload, budget).map_err(|problem| unfit(what, problem)),
        _ => Ok(()),
    }
}

/// A payload that doesn't match its schema, or can't be compared with it.
fn unfit(what: String, problem: SchemaError) -> Refusal {
    match problem {
        SchemaError::TooCostly(problem) => Refusal::TooCostly { problem: format!("{what} is {problem}") },
        breach => Refusal::Schema { what, problem: breach.to_string() },
    }
}

/// Turns an input into a decision.
pub fn decide(
    plan: &Plan,
    state: &RunState,
    input: &DecideInput,
    known: &Known,
    moment: Moment<'_>,
) -> Decided {
    decide_within(plan, state, input, known, moment, &Budget::default())
}

/// [`decide`], unless it takes more than [`budget::QUICK_STEPS`](crate::budget::QUICK_STEPS): then the caller must decide
/// where that holds up nobody.
pub fn decide_quickly(
    plan: &Plan,
    state: &RunState,
    input: &DecideInput,
    known: &Known,
    moment: Moment<'_>,
) -> Option<Decided> {
    let budget = Budget::quick();
    let decided = decide_within(plan, state, input, known, moment, &budget);
    (!budget.is_spent()).then_some(decided)
}

fn decide_within(
    plan: &Plan,
    state: &RunState,
    input: &DecideInput,
    known: &Known,
    moment: Moment<'_>,
    budget: &Budget,
) -> Decided {
    if !state.started && !matches!(input, DecideInput::Start(_)) {
        return Decided::Refused(Refusal::NotStarted);
    }
    let mut draft = Draft::new(plan, state, known, moment, budget);
    let outcome = match input {
        DecideInput::Start(start) => draft.start(start),
        DecideInput::Started { step, attempt, data } => draft.started(*step, *attempt, data),
        DecideInput::Done { step, attempt, result, emits } => draft.done(*step, *attempt, result, emits),
        DecideInput::Failed { step, attempt, failure } => draft.failed(*step, *attempt, failure),
        DecideInput::LeaseLost { step, attempt, released } => draft.lease_lost(*step, *attempt, *released),
        DecideInput::EmitNow { step, attempt, name, payload } => {
            draft.emit_now(*step, *attempt, name, payload)
        }
        DecideInput::External { name, payload, event_id, sender } => match (event_id, &plan.machine) {
            (_, None) => draft.external(name, payload, event_id.as_deref()),
            (Some(event_id), Some(_)) => draft.receive(name, payload, event_id, sender),
            (None, Some(_)) => Err(Refusal::Unnamed.into()),
        },
        DecideInput::TimerDue { timer, number, due } if plan.machine.is_some() => {
            draft.timer_due(*timer, *number, *due)
        }
        DecideInput::Begin if plan.machine.is_some() => draft.begin_late(),
        DecideInput::TimerDue { .. } | DecideInput::Begin => Err(Halt::Applied),
        DecideInput::TimedOut => draft.timed_out(),
        DecideInput::Cancel { reason } => draft.cancel(reason.as_deref()),
        DecideInput::Pause => draft.pause(),
        DecideInput::Resume => draft.resume(),
        DecideInput::Finish(finish) => draft.finish_by_hand(finish),
        DecideInput::Revisit => draft.revisit(),
    };
    match outcome {
        Ok(()) => draft.decision(),
        Err(Halt::Applied) => Decided::Applied,
        Err(Halt::Refused(refusal)) => Decided::Refused(refusal),
        Err(Halt::Missing(missing)) => Decided::Missing(missing),
    }
}

/// Why a decision stops short.
enum Halt {
    Applied,
    Refused(Refusal),
    Missing(Missing),
}

impl From<EvaluationError> for Refusal {
    fn from(problem: EvaluationError) -> Refusal {
        let text = problem.to_string();
        match problem.is_too_costly() {
            true => Refusal::TooCostly { problem: text },
            false => Refusal::Expression { problem: text },
        }
    }
}

impl From<Refusal> for Halt {
    fn from(refusal: Refusal) -> Halt {
        Halt::Refused(refusal)
    }
}
