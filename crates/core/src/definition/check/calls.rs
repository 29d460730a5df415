//! What `start` and `send` steps ask of the engine: names, and the templates in what they hand over.

use super::parts::Parts;
use crate::definition::place::Place;
use crate::definition::{Receiver, SendEvent, StartRun};

impl Parts {
    pub(super) fn start(&mut self, who: &str, start: &StartRun, place: &Place) {
        self.name("flow", &start.flow, place.key("flow"));
        if let Some(input) = &start.input {
            self.shape("the input", who, input, place.key("input"));
        }
    }

    pub(super) fn send(&mut self, who: &str, send: &SendEvent, place: &Place) {
        match &send.to {
            Receiver::Run { run } => self.address("the run", who, run, place.key("run")),
            Receiver::Machine { machine, key, input } => {
                self.name("machine", machine, place.key("machine"));
                self.address("the key", who, key, place.key("key"));
                if let Some(input) = input {
                    self.shape("the input", who, input, place.key("input"));
                }
            }
        }
        self.event(&send.event, place.key("event"));
        if let Some(payload) = &send.payload {
            self.shape("the payload", who, payload, place.key("payload"));
        }
    }

    fn address(&mut self, what: &str, who: &str, text: &str, place: Place) {
        if text.trim().is_empty() {
            let message = format!("{what} of {who} is empty");
            return self.error("empty-text", place, message, "set it, for example to ${input.order}");
        }
        self.template(what, who, text, &place);
    }
}
