//! Where a retried run of a machine continues: before the event or timer that failed it.
//!
//! If an action failed the run (also by way of `on_error` and a failed final state), or an expression did, the new run
//! goes back to before the event or timer that led there and applies it again. If the run was ended from outside
//! (timeout, cancel, by hand), it goes back likewise if actions were running, and otherwise continues where it was. If
//! an event or a timer led to a final state, there's nothing to retry. Events that were waiting were rejected when the
//! run ended, so they aren't carried over.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowline_core::decide::{PastEvent, ReceivedEvent, Sender, Standing, TriedAgain};
use flowline_core::definition::Ends;
use flowline_core::event::{EventType, PayloadSlot};
use flowline_core::machine::Turn;
use flowline_core::receipt::Opened;
use flowline_core::{Event, Json, Plan, RunKey, RunState, Time, limits};
use flowline_store::{EventQuery, ReceiptQuery, Snapshot, Store, StoreError};
use serde::Deserialize;

use crate::engine::EngineError;

/// Receipts on a page.
const PAGE: usize = 500;

/// Where the run continues; none if it starts over, because it failed before its first event.
pub(crate) async fn of_ended(
    store: &dyn Store,
    plan: &Plan,
    snapshot: &Snapshot,
) -> Result<Option<Box<Standing>>, EngineError> {
    let run = snapshot.row.key();
    let damaged = |problem: String| StoreError::Damaged(format!("run {}: {problem}", run.run));
    let state = RunState::decode(plan, &snapshot.state).map_err(|error| damaged(error.to_string()))?;
    let mut trail = Trail::default();
    let kinds = vec![
        EventType::EventReceived,
        EventType::EventRejected,
        EventType::StateChanged,
        EventType::TimerSet,
        EventType::TimerCancelled,
        EventType::FlowCompleted,
        EventType::FlowFailed,
        EventType::FlowCancelled,
    ];
    let mut query = EventQuery { kinds, ..EventQuery::default() };
    loop {
        let page = store.events(&run, query.clone()).await?;
        page.events.iter().for_each(|event| trail.event(event));
        match page.events.last() {
            Some(Event { seq, .. }) if page.more => query.after = *seq,
            _ => break,
        }
    }
    let Some((place, again)) = trail.taken_up(plan, &state).map_err(EngineError::NoRetryInPlace)? else {
        return Ok(None);
    };
    if place.past as usize > limits::PAST_EVENTS {
        let text = format!(
            "run {} received {} events before it failed, but a retry can carry over at most {}; retry it from the start",
            run.run,
            place.past,
            limits::PAST_EVENTS
        );
        return Err(EngineError::NoRetryInPlace(text));
    }
    let past = past_events(store, &run, place.past).await?;
    if past.len() != place.past as usize {
        return Err(damaged(format!("{} of {} events have a receipt", past.len(), place.past)).into());
    }
    Ok(Some(Box::new(Standing {
        state: place.state,
        transition: place.transition,
        context: place.context,
        timers: place.timers.into_iter().collect(),
        past,
        again,
    })))
}

/// The outcomes of a run's first events.
async fn past_events(store: &dyn Store, run: &RunKey, last: u32) -> Result<Vec<PastEvent>, StoreError> {
    let of_run = ReceiptQuery { run: Some(run.run.clone()), ..ReceiptQuery::of(run.tenant.clone()) };
    let mut query = ReceiptQuery { limit: PAGE, ..of_run };
    let mut past = BTreeMap::new();
    loop {
        let page = store.receipts(query.clone()).await?;
        for receipt in page.items.into_iter().filter(|receipt| receipt.number <= last) {
            let opened = Opened { event_id: receipt.event_id, name: receipt.name, sender: receipt.sender };
            past.insert(
                receipt.number,
                PastEvent { opened, status: receipt.status, outcome: receipt.outcome },
            );
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(past.into_values().collect()),
        }
    }
}

/// A machine between two turns.
#[derive(Debug, Clone)]
struct Place {
    state: Arc<str>,
    transition: u32,
    context: Json,
    /// Timers that are set, or have fired and wait for their turn, with their times.
    timers: BTreeMap<u32, Time>,
    /// Events that have had their turn: turns are in the order in which events came in.
    past: u32,
}

/// What brought a turn about, other than the failure of an action.
#[derive(Debug, Clone)]
enum Cause {
    Start,
    Event(Option<Json>),
    Timer(u32),
}

/// The log of a run, as far as it has been read.
#[derive(Debug, Default)]
struct Trail {
    at: Option<Place>,
    /// The last turn that wasn't caused by a failed action, and the machine's position before it.
    turn: Option<(Option<Place>, Cause)>,
    /// Whether a failed action brought the last turn about.
    erred: bool,
    /// Events of the run that this one repeats.
    inherited: u32,
    /// Events that wait for their turn.
    open: BTreeMap<u32, Json>,
    end: Option<(EventType, Data)>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Data {
    to: Option<Arc<str>>,
    transition: u32,
    number: Option<u32>,
    timer: Option<u32>,
    action: Option<String>,
    at: Option<Time>,
    reason: Option<String>,
    code: Option<String>,
    by: Option<String>,
    step: Option<String>,
    stays: bool,
    inherited: bool,
}

impl Trail {
    fn event(&mut self, event: &Event) {
        let json = event.data.clone().unwrap_or_else(Json::null);
        let data: Data = json.to().unwrap_or_default();
        match event.kind {
            EventType::EventReceived if data.inherited => self.inherited = data.number.unwrap_or(0),
            EventType::EventReceived => drop(self.open.insert(data.number.unwrap_or(0), json)),
            EventType::EventRejected => {
                let number = data.number.unwrap_or(0);
                self.open.remove(&number);
                if let Some(at) = self.at.as_mut().filter(|_| data.code.as_deref() != Some("ended")) {
                    at.past = at.past.max(number);
                }
            }
            EventType::StateChanged => self.changed(data, &json),
            EventType::TimerSet => {
                if let (Some(at), Some(timer), Some(due)) = (&mut self.at, data.timer, data.at) {
                    at.timers.insert(timer, due);
                }
            }
            // Those of a state that is left are taken back before the event that leaves it.
            EventType::TimerCancelled if data.reason.as_deref() != Some("left") => {
                if let (Some(at), Some(timer)) = (&mut self.at, data.timer) {
                    at.timers.remove(&timer);
                }
            }
            EventType::FlowCompleted | EventType::FlowFailed | EventType::FlowCancelled => {
                self.end = Some((event.kind, data));
            }
            _ => {}
        }
    }

    fn changed(&mut self, data: Data, json: &Json) {
        let before = self.at.clone();
        self.erred = data.action.is_some();
        let cause = match (data.number, data.timer, &data.action) {
            _ if data.inherited => None,
            (Some(number), ..) => Some(Cause::Event(self.open.remove(&number))),
            (_, Some(timer), _) => Some(Cause::Timer(timer)),
            (.., Some(_)) => None,
            _ => Some(Cause::Start),
        };
        let context = PayloadSlot::Context(0).open(json);
        let had = before.clone();
        let mut timers = had.as_ref().filter(|_| data.stays).map(|at| at.timers.clone()).unwrap_or_default();
        if let Some(timer) = data.timer {
            timers.remove(&timer);
        }
        let past = had.as_ref().map_or(0, |at| at.past);
        self.at = Some(Place {
            state: data.to.unwrap_or_default(),
            transition: data.transition,
            context: match had {
                Some(had) if context.is_null() => had.context,
                _ => context,
            },
            timers,
            past: data.number.unwrap_or(past),
        });
        if data.inherited
            && let Some(at) = &mut self.at
        {
            // All that stands before it in the log had its turn in the other run.
            at.past = self.inherited;
        }
        if let Some(cause) = cause {
            self.turn = Some((before, cause));
        }
    }

    /// Where the run continues, and what it does first; none if it starts over.
    fn taken_up(self, plan: &Plan, state: &RunState) -> Result<Option<(Place, Option<TriedAgain>)>, String> {
        let (Some(machine), Some(planned)) = (&state.machine, &plan.machine) else { return Ok(None) };
        let (Some(at), Some((kind, end))) = (self.at, self.end) else { return Ok(None) };
        let here = planned.state(machine.state);
        let cut =
            kind == EventType::FlowCancelled || end.by.is_some() || end.code.as_deref() == Some("timeout");
        let sent_there = here.ends == Ends::Failed && machine.error.is_none() && !self.erred;
        let ended_well = kind == EventType::FlowCompleted || sent_there;
        let back = match () {
            () if cut => machine.current.is_some(),
            () if end.step.is_none() && ended_well => {
                return Err(format!(
                    "the run reached the final state {:?}, so there's no failed event to retry; retry it from the start",
                    here.name
                ));
            }
            // A timer whose expressions could not be worked out had the turn, and made no transition.
            () if end.step.is_none() && here.ends == Ends::No && machine.error.is_none() => {
                if let Some(Turn::Timer(timer)) = machine.inbox.front() {
                    return Ok(Some((at, Some(TriedAgain::Timer(*timer)))));
                }
                true
            }
            () => true,
        };
        if !back {
            return Ok(Some((at, None)));
        }
        // Without a turn of its own it stands where it was put.
        let Some((before, cause)) = self.turn else { return Ok(Some((at, None))) };
        let again = match cause {
            Cause::Start => return Ok(None),
            Cause::Timer(timer) => TriedAgain::Timer(timer),
            Cause::Event(json) => sent(json)?,
        };
        Ok(before.map(|before| (before, Some(again))))
    }
}

fn sent(json: Option<Json>) -> Result<TriedAgain, String> {
    let received = json.and_then(|json| json.to::<ReceivedEvent>().ok());
    let Some(ReceivedEvent { name, payload, event_id, user_id, sent_by, roles }) = received else {
        return Err("the failed event isn't in the log; retry the run from the start".to_owned());
    };
    Ok(TriedAgain::Event { name, payload, event_id, sender: Sender { user: user_id, roles, sent_by } })
}
