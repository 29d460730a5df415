//! Messages that a program writes to stdout.
//!
//! A JSON object is a message if it has only these keys. If a line starts with `{` but isn't a message, [`read`] says
//! why, so that the log can show it. An object with other keys is probably the program's own JSON, such as the step's
//! input: its `fail`, `retry` or `state` only counts if it reads as that part of a message.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use flowline_api::work::Emit;
use flowline_core::definition::nearest;
use flowline_core::json::Json;
use flowline_core::time::parse_duration;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::step::{Level, StepError};

/// The keys of a message.
const KEYS: [&str; 7] = ["emit", "emit_now", "log", "state", "result", "fail", "retry"];

/// A line that a program wrote.
pub enum StdoutLine {
    /// Boxed, because most lines are text.
    Message(Box<ProgramMessage>),
    Text,
    /// Meant as a message, and none.
    Odd(Odd),
}

/// Why a line is no message.
pub struct Odd {
    pub why: String,
    /// It says that the attempt failed, if not how: it must not pass for a success.
    pub failure: Option<StepError>,
    /// It would change or read state: what comes after it may rest on that, so the attempt ends here.
    pub breach: Option<StepError>,
}

impl Odd {
    fn new(why: String, failure: Option<StepError>, of_state: bool) -> Odd {
        let breach =
            of_state.then(|| StepError::fatal(format!("an invalid state message: {why}")).code("protocol"));
        Odd { why, failure, breach }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramMessage {
    pub emit: Option<Emit>,
    pub emit_now: Option<Emit>,
    pub log: Option<Map<String, Value>>,
    pub state: Option<StateMessage>,
    #[serde(default, deserialize_with = "flowline_core::json::present")]
    pub result: Option<Json>,
    pub fail: Option<Fail>,
    pub retry: Option<Again>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateMessage {
    pub set: Option<String>,
    pub delete: Option<String>,
    pub get: Option<String>,
    #[serde(default, deserialize_with = "flowline_core::json::present")]
    pub value: Option<Json>,
    pub scope: Option<String>,
    pub ttl: Option<String>,
}

impl StateMessage {
    fn asks(&self) -> bool {
        self.set.is_some() || self.delete.is_some() || self.get.is_some()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    pub error: String,
    pub code: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    pub error: String,
    pub code: Option<String>,
    pub after: Option<String>,
}

/// Reads a line of stdout.
pub fn read(text: &str) -> StdoutLine {
    let text = text.trim();
    if !text.starts_with('{') {
        return StdoutLine::Text;
    }
    let json = match Json::parse(text) {
        Ok(json) => json,
        Err(error) => return StdoutLine::Odd(Odd::new(error.to_string(), None, false)),
    };
    match json.to::<ProgramMessage>() {
        Ok(mut message) => match message.doubt() {
            None => StdoutLine::Message(Box::new(message)),
            Some(why) => StdoutLine::Odd(Odd::new(why, message.failure(), message.state.is_some())),
        },
        Err(error) => StdoutLine::Odd(odd(&json, &error)),
    }
}

impl ProgramMessage {
    /// The failure that the message reports. The delay is left out if it isn't a duration.
    pub fn failure(&mut self) -> Option<StepError> {
        let coded = |error: StepError, code: Option<String>| match code {
            Some(code) => error.code(&code),
            None => error,
        };
        if let Some(Again { error, code, after }) = self.retry.take() {
            let failed = coded(StepError::new(error), code);
            return Some(match after.as_deref().and_then(parse_duration) {
                Some(after) => failed.retry_after(after.max(Duration::from_millis(1))),
                None => failed,
            });
        }
        self.fail.take().map(|Fail { error, code }| coded(StepError::fatal(error), code))
    }

    /// What is wrong with a message that has the right keys.
    fn doubt(&self) -> Option<String> {
        let level = self.log.as_ref().and_then(|fields| fields.get("level"));
        if let Some(level) = level.filter(|level| level.as_str().and_then(Level::parse).is_none()) {
            let near = level.as_str().and_then(|level| nearest(level, Level::ALL.map(Level::as_str)));
            return Some(format!("unknown log level {level}{}", Hint(near)));
        }
        let after = self.retry.as_ref().and_then(|retry| retry.after.as_deref());
        if let Some(after) = after.filter(|after| parse_duration(after).is_none()) {
            return Some(format!("retry.after {after:?} isn't a duration; write 500ms, 30s, 5m or 1h"));
        }
        let ttl = self.state.as_ref().and_then(|state| state.ttl.as_deref());
        if let Some(ttl) = ttl.filter(|ttl| parse_duration(ttl).is_none_or(|ttl| ttl.is_zero())) {
            return Some(format!("state.ttl {ttl:?} isn't a duration; write 500ms, 30s, 5m or 1h"));
        }
        let ProgramMessage { emit, emit_now, log, state, result, fail, retry } = self;
        let silent = emit.is_none() && emit_now.is_none() && log.is_none() && state.is_none();
        (silent && result.is_none() && fail.is_none() && retry.is_none())
            .then(|| "it says nothing".to_owned())
    }
}

fn odd(json: &Json, error: &serde_json::Error) -> Odd {
    let parts = json.to::<BTreeMap<String, Json>>().unwrap_or_default();
    let other = parts.keys().find(|key| !KEYS.contains(&key.as_str()));
    let why = match other {
        Some(key) => format!("unknown key {key:?}{}", Hint(nearest(key, KEYS))),
        None => error.to_string(),
    };
    let says = |key: &str, reads: fn(&Json) -> bool| {
        parts.get(key).is_some_and(|part| other.is_none() || reads(part))
    };
    // Beside keys that are not ours it may be a count of a report: a failure is one that says what failed.
    let told = |part: &Json| part.to::<String>().is_ok() || part.value().get("error").is_some();
    let text = format!("the program reported a failure in a message that can't be read: {why}");
    let failure = match (says("fail", told), says("retry", told)) {
        (false, false) => None,
        (_, true) => Some(StepError::new(text)),
        (true, false) => Some(StepError::fatal(text)),
    };
    let of_state = says("state", |part| part.to::<StateMessage>().is_ok_and(|state| state.asks()));
    Odd::new(why, failure.map(|failure| failure.code("protocol")), of_state)
}

/// The remedy for a slip.
struct Hint<'a>(Option<&'a str>);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(near) => write!(f, "; did you mean {near:?}?"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        match read(text) {
            StdoutLine::Odd(odd) => odd.why,
            StdoutLine::Text => panic!("{text} is text"),
            StdoutLine::Message(_) => panic!("{text} is a message"),
        }
    }

    #[test]
    fn a_slip_is_named_with_what_was_meant() {
        assert_eq!(why(r#"{"resutl": 1}"#), r#"unknown key "resutl"; did you mean "result"?"#);
        assert_eq!(why(r#"{"time": 1, "msg": "x"}"#), r#"unknown key "msg""#);
        assert_eq!(why(r#"{"log": {"level": "wran"}}"#), r#"unknown log level "wran"; did you mean "warn"?"#);
        assert!(why(r#"{"retry": {"error": "e", "after": "soon"}}"#).contains(r#"retry.after "soon""#));
        assert!(why(r#"{"emit": {"name": "a", "paylod": 1}}"#).contains("paylod"));
        assert!(why(r#"{"emit": "a"}"#).contains("invalid type"));
        assert!(why(r#"{"result": 1"#).starts_with("not JSON"));
        assert_eq!(why("{}"), "it says nothing");
    }

    #[test]
    fn a_failure_that_cannot_be_read_is_one_all_the_same() {
        let failed = |text| matches!(read(text), StdoutLine::Odd(Odd { failure: Some(_), .. }));
        assert!(failed(r#"{"fail": "boom"}"#));
        assert!(failed(r#"{"retry": {"error": "e", "after": "soon"}}"#));
        assert!(failed(r#"{"attempt": 1, "fail": {"error": "e"}}"#));
        assert!(failed(r#"{"fail": "card declined", "code": "declined"}"#));
        assert!(failed(r#"{"retry": {"error": "busy", "cod": "x"}, "step": "ship"}"#));
        assert!(!failed(r#"{"emit": "a"}"#));
        assert!(!failed(r#"{"passed": 3, "fail": 0}"#), "what a test runner reports");
    }

    #[test]
    fn a_state_message_that_cannot_be_obeyed_ends_the_attempt_and_other_json_does_not() {
        let ends = |text| matches!(read(text), StdoutLine::Odd(Odd { breach: Some(_), .. }));
        assert!(ends(r#"{"state": {"sett": "a", "value": 1}}"#));
        assert!(ends(r#"{"state": "a"}"#));
        assert!(ends(r#"{"state": {"get": "a"}, "resutl": 1}"#), "the program waits for a reply");
        for other in [
            r#"{"runId": "r", "state": {"courier": "north"}, "input": {}}"#,
            r#"{"stepId": "s", "state": {}}"#,
            r#"{"level": "info", "state": "running"}"#,
        ] {
            assert!(!ends(other), "{other}");
        }
    }

    #[test]
    fn a_message_may_be_indented_and_text_is_text() {
        assert!(
            matches!(read("  {\"result\": null}\r"), StdoutLine::Message(message) if message.result.is_some())
        );
        assert!(matches!(read("hello {"), StdoutLine::Text));
    }
}
