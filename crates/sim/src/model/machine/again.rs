//! A run that repeats another: where that one stood before what failed, by the model's own account of its log.

use flowline_core::EventType;
use serde_json::{Map, Value, json};

use super::receipts::Became;
use super::{Letter, Model, Turn};

/// How a run came to its end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Over {
    /// In a final state: there is nothing to try again.
    Final,
    /// Its last turn failed it.
    Failed,
    /// This timer could not be worked out.
    Timer(usize),
    /// From outside, while actions ran or not.
    Cut { busy: bool },
}

/// Where a machine stood.
#[derive(Debug, Clone)]
pub(super) struct Stood {
    state: usize,
    transition: u32,
    context: Map<String, Value>,
    /// Timers, each with its place among all that were ever set.
    timers: Vec<(usize, usize)>,
    /// Events that had had their turn.
    past: u32,
}

/// What a run takes over from the one that it repeats.
#[derive(Debug)]
pub(super) struct Legacy {
    stood: Stood,
    /// Times of the timers.
    due: Vec<Value>,
    letters: Vec<(Letter, Became)>,
    /// What is tried again.
    again: Option<Again>,
}

#[derive(Debug)]
enum Again {
    Event(Letter),
    Timer(usize),
}

impl Model<'_> {
    /// Where the machine is now.
    pub(super) fn stands(&self) -> Stood {
        let fired = self.inbox.iter().filter_map(|turn| match turn {
            Turn::Timer(timer) => Some(*timer),
            _ => None,
        });
        let mut timers: Vec<usize> = self.armed.iter().copied().chain(fired).collect();
        timers.sort_unstable();
        Stood {
            state: self.state,
            transition: self.transition,
            context: self.context.clone(),
            timers: timers.into_iter().map(|timer| (timer, self.places[&timer])).collect(),
            past: self.past,
        }
    }

    /// What a run that repeats this one begins with; none where it begins anew. An error where it may not be repeated.
    pub(super) fn legacy(&self) -> Result<Option<Legacy>, String> {
        let Some(over) = self.over else { return Err("it retries a run that hasn't ended".to_owned()) };
        let root = || self.root.clone();
        let (stood, by) = match over {
            Over::Final => return Err("it retries a run in which nothing failed".to_owned()),
            Over::Timer(timer) => (self.stands(), Some(Turn::Timer(timer))),
            _ if self.transition == 0 => return Ok(None),
            Over::Cut { busy: false } => (self.last.clone().unwrap_or_else(|| self.stands()), None),
            Over::Failed | Over::Cut { busy: true } => match root() {
                Some((stood, by)) => (stood, Some(by)),
                None => (self.stands(), None),
            },
        };
        let again = match by {
            None => None,
            Some(Turn::Start | Turn::Error(_)) => return Ok(None),
            Some(Turn::Timer(timer)) => Some(Again::Timer(timer)),
            Some(Turn::Event(number)) => Some(Again::Event(self.letters[&number].clone())),
        };
        let due = stood.timers.iter().map(|(_, place)| self.set_at.get(*place).cloned().unwrap_or_default());
        let letters =
            (1..=stood.past).map(|number| (self.letters[&number].clone(), self.became[&number].clone()));
        Ok(Some(Legacy { due: due.collect(), letters: letters.collect(), stood, again }))
    }

    /// Begins where another run stood.
    pub(super) fn take_over(&mut self, legacy: Legacy) {
        let Legacy { stood, due, letters, again } = legacy;
        for (at, (letter, became)) in letters.into_iter().enumerate() {
            let number = at as u32 + 1;
            let fields = json!({
                "name": letter.name, "eventId": letter.id, "number": number, "inherited": true,
                "status": became.status.as_str(), "payload": null,
            });
            self.foresee(EventType::EventReceived, None, fields);
            self.letters.insert(number, letter);
            self.became.insert(number, became);
        }
        (self.state, self.transition, self.past) = (stood.state, stood.transition, stood.past);
        self.context = stood.context;
        let fields = json!({
            "to": self.name(self.state), "from": null, "transition": self.transition, "context": self.context,
            "inherited": true,
        });
        self.foresee(EventType::StateChanged, None, fields);
        for ((timer, _), due) in stood.timers.into_iter().zip(due) {
            self.arm(timer, None);
            if let Some(expected) = self.expected.back_mut() {
                expected.fields.insert("at".to_owned(), due);
            }
        }
        match again {
            Some(Again::Event(letter)) => {
                let number = self.past + 1;
                let fields = json!({
                    "name": letter.name, "eventId": letter.id, "number": number, "payload": letter.payload,
                    "userId": letter.user, "inherited": null,
                });
                self.foresee(EventType::EventReceived, None, fields);
                self.letters.insert(number, letter);
                self.inbox.push_back(Turn::Event(number));
            }
            Some(Again::Timer(timer)) => {
                self.foresee(EventType::TimerFired, None, json!({ "timer": timer }));
                self.armed.remove(&timer);
                self.inbox.push_back(Turn::Timer(timer));
            }
            None => {}
        }
        self.advance();
    }
}
