//! Compares what clients asked for and were told with what the store has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flowline_core::event::{Event, EventType};
use flowline_core::{RunId, RunKey, Tenant};
use serde::Deserialize;

use crate::Invariant::{I3, I9};
use crate::source::StoreSnapshot;
use crate::violation::{Checker, Findings, Violation};

/// Everything that clients did, in any order.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    /// Runs that retention removed. They aren't checked.
    pub removed: BTreeSet<RunKey>,
}

#[derive(Debug, Clone)]
pub struct Operation {
    pub tenant: Tenant,
    pub act: ClientRequest,
    pub outcome: ClientReply,
}

#[derive(Debug, Clone)]
pub enum ClientRequest {
    /// A start, or the retry of an ended run. `run` is the one the client was told about; `body` is the input as JSON, or
    /// `None` if the client doesn't know it.
    Start { run: Option<RunId>, flow: Arc<str>, key: Option<String>, body: Option<String> },
    /// An event. `event_id` is `None` if the client didn't choose one.
    Send { run: RunId, name: String, event_id: Option<String> },
    /// A cancel.
    Cancel { run: RunId },
    /// A pause.
    Pause { run: RunId },
    /// A resume.
    Resume { run: RunId },
    /// Completed or failed by hand.
    Finish { run: RunId },
}

/// What the client was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientReply {
    Acknowledged,
    Refused,
    /// No response, or one that leaves it open.
    Unknown,
    /// The run was already as requested, because of another request or because this one was carried out twice. The log had
    /// `asked` events at the time of the request and `answered` at the time of the response.
    Unchanged {
        asked: u64,
        answered: u64,
    },
}

impl ClientRequest {
    fn run(&self) -> Option<&RunId> {
        match self {
            ClientRequest::Start { run, .. } => run.as_ref(),
            ClientRequest::Send { run, .. }
            | ClientRequest::Cancel { run }
            | ClientRequest::Pause { run }
            | ClientRequest::Resume { run }
            | ClientRequest::Finish { run } => Some(run),
        }
    }
}

impl History {
    pub fn push(&mut self, tenant: &Tenant, act: ClientRequest, outcome: ClientReply) {
        self.operations.push(Operation { tenant: tenant.clone(), act, outcome });
    }

    /// Compares the store with what clients were told.
    pub fn check(&self, checker: Checker, source: &dyn StoreSnapshot) -> Vec<Violation> {
        let tenants: BTreeSet<&Tenant> = self.operations.iter().map(|operation| &operation.tenant).collect();
        let mut violations = Vec::new();
        for tenant in tenants {
            let of_tenant: Vec<&Operation> =
                self.operations.iter().filter(|operation| operation.tenant == *tenant).collect();
            violations.extend(self.starts(checker, source, tenant, &of_tenant));
            let mut by_run: BTreeMap<&RunId, Vec<&Operation>> = BTreeMap::new();
            for operation in of_tenant {
                if let Some(run) = operation.act.run() {
                    by_run.entry(run).or_default().push(operation);
                }
            }
            for (run, operations) in by_run {
                let key = RunKey::new(tenant.clone(), run.clone());
                if !self.removed.contains(&key) {
                    violations.extend(of_run(checker, source, &key, &operations));
                }
            }
        }
        violations
    }

    /// Checks that every run was requested, and that one start makes one run.
    fn starts(
        &self,
        checker: Checker,
        source: &dyn StoreSnapshot,
        tenant: &Tenant,
        operations: &[&Operation],
    ) -> Vec<Violation> {
        let mut found = checker.findings();
        let mut told: BTreeSet<&RunId> = BTreeSet::new();
        let mut by_key: BTreeMap<(&str, &str), (bool, Option<&RunId>)> = BTreeMap::new();
        let mut untold = 0;
        for operation in operations {
            let ClientRequest::Start { run, flow, key, .. } = &operation.act else { continue };
            let asked = operation.outcome != ClientReply::Refused;
            match (key, run, operation.outcome) {
                (Some(key), _, _) => {
                    let (was_asked, known) = by_key.entry((flow, key)).or_default();
                    *was_asked |= asked;
                    let run = run.as_ref().filter(|_| operation.outcome == ClientReply::Acknowledged);
                    if let (Some(known), Some(run)) = (*known, run)
                        && known != run
                    {
                        found.outside(I9, format!("key {key:?} started two runs, {known} and {run}"));
                    }
                    *known = known.or(run);
                }
                (None, Some(run), ClientReply::Acknowledged) => {
                    if !told.insert(run) {
                        found.outside(I3, format!("two starts were told that they created run {run}"));
                    }
                }
                (None, _, ClientReply::Unknown) => untold += 1,
                (None, _, _) => {}
            }
        }
        let mut unasked = 0;
        for row in source.runs(tenant).iter().filter_map(|run| source.row(run)) {
            let asked = match &row.idempotency_key {
                Some(key) => by_key.get(&(&*row.flow_name, key.as_str())).is_some_and(|(asked, _)| *asked),
                None if told.contains(&row.run_id) => true,
                None => {
                    unasked += 1;
                    unasked <= untold
                }
            };
            if !asked {
                let (run, flow) = (&row.run_id, &row.flow_name);
                let message = format!("run {run} of flow {flow:?} exists, but every start of it was refused");
                found.outside(I3, message);
            }
        }
        found.of_tenant(tenant)
    }
}

/// The fields of events that are about clients.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Said {
    input: Option<serde_json::Value>,
    name: Option<String>,
    event_id: Option<String>,
    by: Option<String>,
}

fn of_run(
    checker: Checker,
    source: &dyn StoreSnapshot,
    key: &RunKey,
    operations: &[&Operation],
) -> Vec<Violation> {
    let mut found = checker.findings();
    let acknowledged = operations.iter().any(|operation| operation.outcome == ClientReply::Acknowledged);
    match source.row(key) {
        None if acknowledged => found.outside(I3, "the start was acknowledged, but the run doesn't exist"),
        None => {}
        Some(row) if row.events_trimmed => {}
        Some(_) => Told::read(source, key).check(operations, &mut found),
    }
    found.of_run(key)
}

/// What clients did, according to a log.
struct Told {
    input: Option<serde_json::Value>,
    /// External events: name and id.
    received: Vec<(String, Option<String>)>,
    /// Whether they belong to a machine, which accepts every event with a new id.
    by_id: bool,
    /// Every pause (true) and resume (false), with its number in the log.
    pauses: Vec<(u64, bool)>,
    cancelled: bool,
    by_hand: bool,
}

impl Told {
    fn read(source: &dyn StoreSnapshot, key: &RunKey) -> Told {
        let events = source.events(key, 0);
        let said = |event: &Event| -> Said {
            event.data.as_ref().and_then(|data| data.to().ok()).unwrap_or_default()
        };
        let pause = |event: &Event| match event.kind {
            EventType::FlowPaused => Some((event.seq, true)),
            EventType::FlowResumed => Some((event.seq, false)),
            _ => None,
        };
        let from_outside = |event: &&Event| match event.kind {
            EventType::Emit => event.step_name.is_none(),
            kind => kind == EventType::EventReceived,
        };
        let receive = |event: &Event| {
            let said = said(event);
            (said.name.unwrap_or_default(), said.event_id)
        };
        Told {
            input: events.first().and_then(|event| said(event).input),
            received: events.iter().filter(from_outside).map(receive).collect(),
            by_id: events.iter().any(|event| event.kind == EventType::EventReceived),
            pauses: events.iter().filter_map(pause).collect(),
            cancelled: events.iter().any(|event| event.kind == EventType::FlowCancelled),
            by_hand: events.last().is_some_and(|event| said(event).by.is_some()),
        }
    }

    fn check(&self, operations: &[&Operation], found: &mut Findings) {
        for operation in operations {
            self.check_one(operation, found);
        }
        let asked = |fits: fn(&ClientRequest) -> bool| {
            operations.iter().filter(|o| fits(&o.act) && o.outcome != ClientReply::Refused).count()
        };
        let counts = [
            ("flow.paused", self.count(true), asked(|act| matches!(act, ClientRequest::Pause { .. }))),
            ("flow.resumed", self.count(false), asked(|act| matches!(act, ClientRequest::Resume { .. }))),
            (
                "flow.cancelled",
                usize::from(self.cancelled),
                asked(|act| matches!(act, ClientRequest::Cancel { .. })),
            ),
        ];
        for (kind, there, asked) in counts {
            if there > asked {
                found.outside(I3, format!("the log has {there} {kind}, but there were {asked} requests"));
            }
        }
        let sends = |name: &str, id: &Option<String>| {
            operations.iter().any(|operation| match &operation.act {
                ClientRequest::Send { name: sent, event_id, .. } => {
                    let alike = event_id.is_none() || event_id == id;
                    sent == name && alike && operation.outcome != ClientReply::Refused
                }
                // A retry inherits the events that the first run received.
                ClientRequest::Start { body: None, .. } => true,
                _ => false,
            })
        };
        for (name, id) in self.received.iter().filter(|(name, id)| !sends(name, id)) {
            let message =
                format!("event {name:?} ({id:?}) was received, but every attempt to send it was refused");
            found.outside(I3, message);
        }
    }

    fn count(&self, paused: bool) -> usize {
        self.pauses.iter().filter(|(_, kind)| *kind == paused).count()
    }

    /// Whether the run was `paused` at some moment while the log grew from `asked` to `answered` events.
    fn was(&self, paused: bool, asked: u64, answered: u64) -> bool {
        let before = self.pauses.iter().rfind(|(seq, _)| *seq <= asked).is_some_and(|(_, kind)| *kind);
        let mut between = self.pauses.iter().filter(|(seq, _)| (asked + 1..=answered).contains(seq));
        before == paused || between.any(|(_, kind)| *kind == paused)
    }

    fn check_unchanged(&self, act: &ClientRequest, asked: u64, answered: u64, found: &mut Findings) {
        let (what, paused) = match act {
            ClientRequest::Pause { .. } => ("paused", true),
            ClientRequest::Resume { .. } => ("not paused", false),
            _ => return,
        };
        if !self.was(paused, asked, answered) {
            found.outside(I3, format!("a client was told that the run was already {what}, but it wasn't"));
        }
    }

    fn check_one(&self, operation: &Operation, found: &mut Findings) {
        if let ClientReply::Unchanged { asked, answered } = operation.outcome {
            self.check_unchanged(&operation.act, asked, answered, found);
        }
        if operation.outcome != ClientReply::Acknowledged {
            return;
        }
        let mut lost = |there: bool, what: &str| {
            if !there {
                found.outside(I3, format!("{what} was acknowledged, but isn't in the log"));
            }
        };
        match &operation.act {
            ClientRequest::Start { body: Some(body), key, .. } => {
                // An input of null is read as `None`.
                let body: Option<serde_json::Value> = serde_json::from_str(body).unwrap_or_default();
                if body != self.input {
                    let invariant = if key.is_some() { I9 } else { I3 };
                    found.outside(invariant, "a start was acknowledged, but the run has another input");
                }
            }
            ClientRequest::Start { .. } => {}
            ClientRequest::Send { name, event_id, .. } => {
                let any = event_id.is_none() || !self.by_id;
                let same =
                    |(received, id): &(String, Option<String>)| received == name && (any || id == event_id);
                lost(self.received.iter().any(same), &format!("event {name:?} ({event_id:?})"));
            }
            ClientRequest::Cancel { .. } => lost(self.cancelled, "a cancel"),
            ClientRequest::Pause { .. } => lost(self.count(true) > 0, "a pause"),
            ClientRequest::Resume { .. } => lost(self.count(false) > 0, "a resume"),
            ClientRequest::Finish { .. } => lost(self.by_hand, "a completion or failure by hand"),
        }
    }
}
