//! What happens to the run of a machine: events come in, take turns, and move it.
//!
//! A turn is decided where the one before it is over, in the same commit: in the commit that takes the event in, or in
//! that of the last action before it. So an event that is in the inbox of an idle machine does not exist, and nobody has
//! to be told to look.

mod close;
mod stand;
mod transition;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde::Deserialize;
use serde_json::Value;

pub use stand::{PastEvent, Standing, TriedAgain};

use super::draft::{Draft, need};
use super::{Halt, Missing, Refusal, Sender, check_payload, known_event};
use crate::definition::{Ends, Missed};
use crate::event::{EventType, PayloadSlot};
use crate::expr::{CelPayload, EvaluationError, Variables};
use crate::json::{self, Json};
use crate::limits;
use crate::machine::{MachineState, Turn};
use crate::plan::{PlanMachine, PlanState, PlanWhen};
use crate::receipt::{Opened, ReceiptChange, ReceiptStatus};
use crate::run::Fact;
use crate::time::Time;

/// Events of the inbox that are read at once.
const READ_AHEAD: usize = 64;

/// Moves from failure to failure without anything having run in between: a machine that makes more goes in circles.
const FAILURES_IN_TURN: u32 = 100;

/// What `event.received` says.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReceivedEvent {
    pub name: String,
    #[serde(default = "Json::null")]
    pub payload: Json,
    pub event_id: String,
    #[serde(default)]
    pub user_id: Option<String>,
    /// Who sent it for that user.
    #[serde(default)]
    pub sent_by: Option<String>,
    #[serde(default)]
    pub roles: Vec<String>,
}

impl Draft<'_> {
    fn machine(&self) -> &MachineState {
        self.state.of_machine()
    }

    fn planned(&self) -> &PlanMachine {
        match &self.plan.machine {
            Some(machine) => machine,
            None => unreachable!("asked only of machines"),
        }
    }

    fn planned_state(&self) -> &PlanState {
        self.planned().state(self.machine().state)
    }

    /// The state's name, for messages.
    fn state_name(&self, state: u32) -> Json {
        json::string(&self.planned().state(state).name)
    }

    /// Enters the initial state, on an input that is at hand or asked for.
    pub(super) fn begin(&mut self) -> Result<(), Halt> {
        if self.state.ended.is_some() || self.machine().transition > 0 {
            return Err(Halt::Applied);
        }
        let begun = self.opening(&self.value(PayloadSlot::Input)?).map_err(Refusal::from)?;
        self.make_move(Turn::Start, 0, begun, None);
        self.advance()
    }

    /// The time of a delayed start has come. A start that is too costly was refused when it was asked for, unless an older
    /// build took it: the run ends, so that nobody tries it again.
    pub(super) fn begin_late(&mut self) -> Result<(), Halt> {
        match self.begin() {
            Err(Halt::Refused(Refusal::TooCostly { problem })) => {
                self.end_by(&EvaluationError::too_costly(problem));
                Ok(())
            }
            other => other,
        }
    }

    /// An event comes in. Those before it have their turns first.
    pub(super) fn receive(
        &mut self,
        name: &str,
        payload: &Json,
        event_id: &str,
        sender: &Sender,
    ) -> Result<(), Halt> {
        let event = known_event(self.plan, name)?;
        match self.known.receipts.get(event_id) {
            Some(true) => return Err(Halt::Applied),
            Some(_) => {}
            None => return Err(Halt::Missing(Missing::Receipt(event_id.to_owned()))),
        }
        self.refuse_if_ended()?;
        self.planned()
            .may_send(event, &sender.roles)
            .map_err(|roles| Refusal::Forbidden { event: name.to_owned(), roles })?;
        check_payload(self.plan, event, name, payload, self.moment.limits, self.budget)?;
        let payload = &if payload.is_nothing() { Json::null() } else { payload.clone() };
        if self.machine().inbox.len() >= limits::INBOX {
            return Err(Refusal::InboxFull.into());
        }
        self.take_in((event, name), payload, event_id, sender);
        self.advance()
    }

    /// Puts an event into the inbox.
    fn take_in(&mut self, (event, name): (u32, &str), payload: &Json, event_id: &str, sender: &Sender) {
        let number = self.machine().received + 1;
        let user = sender.user.as_deref().map(json::string);
        let roles = (!sender.roles.is_empty()).then(|| list(sender.roles.iter().map(String::as_str)));
        let sent_by = sender.sent_by.as_deref().map(json::string);
        let said = [("userId", user.as_ref()), ("roles", roles.as_ref()), ("sentBy", sent_by.as_ref())];
        let from = json::object(said);
        let data = json::object([
            ("name", Some(&json::string(name))),
            ("payload", Some(payload)),
            ("eventId", Some(&json::string(event_id))),
            ("number", Some(&json::number(number.into()))),
            said[0],
            said[1],
            said[2],
        ]);
        self.keep(PayloadSlot::Received(number), &data);
        self.push_run(Fact::Received { number, event }, EventType::EventReceived, Some(data));
        let sender = (user.is_some() || roles.is_some()).then_some(from);
        let opened = Some(Opened { event_id: event_id.into(), name: name.into(), sender });
        let pending = ReceiptChange::new(number, ReceiptStatus::Pending);
        self.receipts.insert(number, ReceiptChange { opened, ..pending });
    }

    /// A timer has run out.
    pub(super) fn timer_due(&mut self, timer: u32, number: u32, due: Time) -> Result<(), Halt> {
        let live = self.machine().armed.get(&timer) == Some(&number);
        if self.state.ended.is_some() || !live {
            return Err(Halt::Applied);
        }
        let planned = self.planned().timer(timer);
        let missed = self.moment.now.since(due) > limits::MISSED;
        match (planned.missed, &planned.when) {
            (Missed::Fire, _) => self.push_timer(timer, EventType::TimerFired, None),
            _ if !missed => self.push_timer(timer, EventType::TimerFired, None),
            (Missed::Restart, PlanWhen::In(delay)) => {
                let again = self.moment.now + *delay;
                self.push_timer(timer, EventType::TimerCancelled, Some("missed"));
                self.set_timer(timer, again);
            }
            (Missed::Skip | Missed::Restart, _) => {
                self.push_timer(timer, EventType::TimerCancelled, Some("missed"));
            }
        }
        self.advance()
    }

    /// Gives turns until actions run or the inbox is empty.
    pub fn advance(&mut self) -> Result<(), Halt> {
        let mut failures = 0;
        loop {
            self.trigger_actions()?;
            if let Some(over) = self.over.take() {
                self.turn_over(&over)?;
            }
            let machine = self.machine();
            if self.state.ended.is_some() || machine.transition == 0 || machine.current.is_some() {
                return Ok(());
            }
            if let Some(action) = self.state.failed {
                return self.end_failed(action);
            }
            if let Some(action) = machine.error {
                failures += 1;
                if failures > FAILURES_IN_TURN {
                    let name = &self.plan.step(action).name;
                    let error = format!("action {name:?} and the state in its `on_error` lead to each other");
                    return self.give_up(error.into());
                }
                self.move_by_error(action)?;
                continue;
            }
            if self.planned_state().ends != Ends::No {
                return self.reach_end();
            }
            let Some(turn) = machine.inbox.front().copied().filter(|_| !self.state.paused) else {
                return Ok(());
            };
            match turn {
                Turn::Event { number, event } => self.turn_of_event(number, event)?,
                Turn::Timer(timer) => self.turn_of_timer(timer)?,
                Turn::Start | Turn::Error(_) => return Ok(()),
            }
        }
    }

    /// A payload for expressions, or the request for it.
    fn value(&self, slot: PayloadSlot) -> Result<Rc<CelPayload>, Halt> {
        self.readable(slot).ok_or_else(|| Halt::Missing(Missing::Payloads(vec![slot])))
    }

    fn context(&self) -> Result<Rc<CelPayload>, Halt> {
        match self.machine().context {
            0 => Ok(CelPayload::parsed(Value::Object(serde_json::Map::new()))),
            transition => self.value(PayloadSlot::Context(transition)),
        }
    }

    /// The run's input, if an expression of the machine reads it; otherwise null.
    fn read_input(&self) -> Result<Rc<CelPayload>, Halt> {
        if self.planned().reads_input {
            self.value(PayloadSlot::Input)
        } else {
            Ok(CelPayload::of(Json::null()))
        }
    }

    /// An event of the inbox. Those behind it are asked for along with it, and what its transition reads.
    fn received(&self, number: u32) -> Result<ReceivedEvent, Halt> {
        if let Some(data) = self.payload(PayloadSlot::Received(number)) {
            let unreadable = |error: serde_json::Error| {
                Halt::from(Refusal::Expression { problem: format!("event {number} is damaged: {error}") })
            };
            return data.to().map_err(unreadable);
        }
        let mut slots = BTreeSet::from([PayloadSlot::Received(number)]);
        let waiting = self.machine().inbox.iter().filter_map(|turn| match turn {
            Turn::Event { number, .. } => Some(PayloadSlot::Received(*number)),
            _ => None,
        });
        slots.extend(waiting.take(READ_AHEAD));
        if self.machine().context > 0 {
            slots.insert(PayloadSlot::Context(self.machine().context));
        }
        need(slots.into_iter().filter(|slot| self.payload(*slot).is_none()).collect())?;
        Err(Halt::Missing(Missing::Payloads(vec![PayloadSlot::Received(number)])))
    }

    /// What expressions of the current turn read.
    fn variables(&self) -> Result<Variables, Halt> {
        let now = Now { context: self.context()?, input: self.read_input()? };
        Ok(match self.machine().current.as_ref().map(|current| current.by) {
            Some(Turn::Event { number, .. }) => now.variables(Some(&self.received(number)?)),
            _ => now.variables(None),
        })
    }
}

/// What a run is at the moment of a turn, for its expressions.
struct Now {
    context: Rc<CelPayload>,
    /// Null where no expression reads it.
    input: Rc<CelPayload>,
}

impl Now {
    fn variables(&self, received: Option<&ReceivedEvent>) -> Variables {
        let text = |text: Option<&String>| {
            CelPayload::parsed(text.map_or(Value::Null, |text| Value::from(text.as_str())))
        };
        let roles: &[String] = received.map_or(&[], |received| &received.roles);
        Variables::of([
            ("input", self.input.clone()),
            ("context", self.context.clone()),
            (
                "payload",
                CelPayload::of(received.map_or_else(Json::null, |received| received.payload.clone())),
            ),
            ("event", text(received.map(|received| &received.name))),
            ("user", text(received.and_then(|received| received.user_id.as_ref()))),
            ("role", text(roles.first())),
            ("roles", CelPayload::parsed(Value::from(roles.to_vec()))),
        ])
    }
}

/// A JSON list of texts.
fn list<'a>(texts: impl Iterator<Item = &'a str>) -> Json {
    Json::from(Value::from(texts.collect::<Vec<_>>()))
}

/// The receipts of a decision, by number.
pub(super) type Receipts = BTreeMap<u32, ReceiptChange>;
