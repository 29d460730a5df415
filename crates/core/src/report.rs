//! What is kept of a run's reports when its log goes: a digest of each.
//!
//! An attempt reports its outcome once and its emits as they happen. A report that comes again is answered by what was
//! recorded. While the log is there, it's compared with the log's events; a store that trims the log keeps these digests,
//! which answer the same questions. Both go through [`ReportDigests::note`], so they can't disagree. The digests are those of
//! values, not of texts: white space, the order of keys and how a number is written make no difference.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::encode::{DecodeError, get, put};
use crate::event::{AttemptOf, Event, EventType};
use crate::json::Json;

/// The code of an attempt whose time was up.
const TIMEOUT: &str = "timeout";

/// The bytes of a digest: half of a SHA-256, still far too many for a collision.
const BYTES: usize = 16;

const FORMAT: u8 = 1;

/// What the log said of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportDigest {
    Completed([u8; BYTES]),
    Failed([u8; BYTES]),
    /// It failed because its time was up: the clock's report, or one that says the same.
    TimedOut([u8; BYTES]),
    Emitted([u8; BYTES]),
    /// It ended without a report: its lease was lost or given back, or it was taken over from another run.
    Unreported,
}

impl ReportDigest {
    pub fn completed(result: Option<&Json>) -> ReportDigest {
        ReportDigest::Completed(digest(|hash| hash_payload(hash, result)))
    }

    /// `error` as it is recorded, which is clipped.
    pub fn failed(error: &str, code: Option<&str>) -> ReportDigest {
        let bytes = digest(|hash| {
            hash_text(hash, error);
            hash_list(hash, code, hash_text);
        });
        match code {
            Some(TIMEOUT) => ReportDigest::TimedOut(bytes),
            _ => ReportDigest::Failed(bytes),
        }
    }

    pub fn emitted(name: &str, payload: Option<&Json>) -> ReportDigest {
        ReportDigest::Emitted(digest(|hash| {
            hash_text(hash, name);
            hash_payload(hash, payload);
        }))
    }

    fn of(kind: EventType, data: Option<&Json>) -> ReportDigest {
        let data = data.and_then(|data| data.to::<Recorded>().ok()).unwrap_or_default();
        match kind {
            EventType::Emit => ReportDigest::emitted(&data.name, data.payload.as_ref()),
            EventType::StepCompleted if data.inherited => ReportDigest::Unreported,
            EventType::StepCompleted => ReportDigest::completed(data.result.as_ref()),
            _ if data.cause.is_some() => ReportDigest::Unreported,
            _ => ReportDigest::failed(&data.error, data.code.as_deref()),
        }
    }

    pub(crate) fn is_emit(self) -> bool {
        matches!(self, ReportDigest::Emitted(_))
    }
}

/// What is compared of the `data` of an event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Recorded {
    result: Option<Json>,
    pub(crate) error: String,
    code: Option<String>,
    cause: Option<String>,
    inherited: bool,
    name: String,
    payload: Option<Json>,
}

/// The digests of a run's reports, by attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportDigests(BTreeMap<AttemptOf, Vec<ReportDigest>>);

impl ReportDigests {
    /// The events that a report makes.
    pub const KINDS: [EventType; 4] =
        [EventType::Emit, EventType::StepCompleted, EventType::StepRetry, EventType::StepFailed];

    /// Those of a log, in order. Other events are passed over.
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> ReportDigests {
        let mut digests = ReportDigests::default();
        for event in events {
            digests.note_event(event);
        }
        digests
    }

    /// Adds what the next event of the log says.
    pub fn note_event(&mut self, Event { kind, step_name, attempt, data, .. }: &Event) {
        if let (Some(step), Some(attempt)) = (step_name, attempt) {
            self.note(*kind, &AttemptOf { step: step.clone(), attempt: *attempt }, data.as_ref());
        }
    }

    /// The same in parts. Of an attempt's outcomes the first counts.
    pub fn note(&mut self, kind: EventType, of: &AttemptOf, data: Option<&Json>) {
        if !ReportDigests::KINDS.contains(&kind) {
            return;
        }
        let known = self.0.entry(of.clone()).or_default();
        let over = kind != EventType::Emit && known.iter().any(|digest| !digest.is_emit());
        let digest = ReportDigest::of(kind, data);
        if !over && !known.contains(&digest) {
            known.push(digest);
        }
    }

    /// What is known of an attempt.
    pub fn attempt(&self, of: &AttemptOf) -> &[ReportDigest] {
        self.0.get(of).map_or(&[], Vec::as_slice)
    }

    /// The bytes that stores keep: the format, then for each attempt the length of its step's name, the name, its number
    /// and the number of digests. A digest is a byte for its kind and, unless unreported, its bytes. Numbers are LEB128.
    /// The name is empty where it's that of the attempt before.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        let mut step = "";
        for (of, digests) in &self.0 {
            let name = if *of.step == *step { "" } else { &*of.step };
            put(&mut out, name.len() as u32);
            out.extend(name.as_bytes());
            step = &of.step;
            put(&mut out, of.attempt);
            put(&mut out, digests.len() as u32);
            for digest in digests {
                let (kind, bytes) = match digest {
                    ReportDigest::Completed(bytes) => (0, &bytes[..]),
                    ReportDigest::Failed(bytes) => (1, &bytes[..]),
                    ReportDigest::TimedOut(bytes) => (2, &bytes[..]),
                    ReportDigest::Emitted(bytes) => (3, &bytes[..]),
                    ReportDigest::Unreported => (4, &[][..]),
                };
                out.push(kind);
                out.extend(bytes);
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<ReportDigests, DecodeError> {
        let mut bytes = bytes.iter().copied().peekable();
        if bytes.next() != Some(FORMAT) {
            return Err(DecodeError("the format of its reports is unknown"));
        }
        let (mut digests, mut step) = (ReportDigests::default(), Arc::<str>::from(""));
        while bytes.peek().is_some() {
            let mut next = || bytes.next().ok_or(DecodeError("its reports are truncated"));
            let length = get(&mut next)?;
            let name = (0..length).map(|_| next()).collect::<Result<Vec<u8>, _>>()?;
            if !name.is_empty() {
                let name =
                    String::from_utf8(name).map_err(|_| DecodeError("the name of a step isn't UTF-8"))?;
                step = name.into();
            }
            let of = AttemptOf { step: step.clone(), attempt: get(&mut next)? };
            let known = digests.0.entry(of).or_default();
            for _ in 0..get(&mut next)? {
                let kind = match next()? {
                    0 => ReportDigest::Completed,
                    1 => ReportDigest::Failed,
                    2 => ReportDigest::TimedOut,
                    3 => ReportDigest::Emitted,
                    4 => {
                        known.push(ReportDigest::Unreported);
                        continue;
                    }
                    _ => return Err(DecodeError("a report has an unknown kind")),
                };
                let mut bytes = [0; BYTES];
                for byte in &mut bytes {
                    *byte = next()?;
                }
                known.push(kind(bytes));
            }
        }
        Ok(digests)
    }
}

fn digest(write: impl FnOnce(&mut Sha256)) -> [u8; BYTES] {
    let mut hash = Sha256::new();
    write(&mut hash);
    let mut bytes = [0; BYTES];
    bytes.copy_from_slice(&hash.finalize()[..BYTES]);
    bytes
}

/// One that is not there is null: an older build recorded null for an event without a payload.
fn hash_payload(hash: &mut Sha256, payload: Option<&Json>) {
    hash_value(hash, &payload.map_or(Value::Null, Json::value));
}

/// Values that are equal write the same, and no others: each begins with its kind, and tells how long it is.
fn hash_value(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Null => hash.update(b"n"),
        Value::Bool(is) => hash.update(if *is { b"t" } else { b"f" }),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(natural), ..) => {
                hash.update(b"+");
                hash.update(natural.to_le_bytes());
            }
            (_, Some(negative), _) => {
                hash.update(b"-");
                hash.update(negative.to_le_bytes());
            }
            (.., real) => {
                hash.update(b".");
                // Zero is zero, whatever its sign.
                hash.update((real.unwrap_or(0.0) + 0.0).to_le_bytes());
            }
        },
        Value::String(text) => {
            hash.update(b"s");
            hash_text(hash, text);
        }
        Value::Array(items) => {
            hash.update(b"[");
            hash_list(hash, items, hash_value);
        }
        Value::Object(fields) => {
            hash.update(b"{");
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            hash_list(hash, sorted, |hash, (key, value)| {
                hash_text(hash, key);
                hash_value(hash, value);
            });
        }
    }
}

fn hash_text(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

fn hash_list<T>(
    hash: &mut Sha256,
    items: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator>,
    write: impl Fn(&mut Sha256, T),
) {
    let items = items.into_iter();
    hash.update((items.len() as u64).to_le_bytes());
    items.for_each(|item| write(hash, item));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it was stored: older builds took a key twice.
    fn json(text: &str) -> Json {
        Json::composed(text.to_owned())
    }

    fn note(digests: &mut ReportDigests, kind: EventType, step: &str, attempt: u32, data: &str) {
        digests.note(kind, &AttemptOf { step: step.into(), attempt }, Some(&json(data)));
    }

    #[test]
    fn payloads_have_the_same_digest_exactly_when_they_are_equal() {
        let texts = [
            "null",
            "true",
            "false",
            "0",
            "-0",
            "0.0",
            "-0.0",
            "1",
            "1.0",
            "1.00",
            "10e-1",
            "-1",
            "-1.0",
            "18446744073709551615",
            "18446744073709551616",
            "9007199254740993",
            "9007199254740993.0",
            "1e300",
            "\"\"",
            "\"a\"",
            "\"\\u0061\"",
            "\"1\"",
            "[]",
            "{}",
            "[[]]",
            "[1,2]",
            "[ 1, 2 ]",
            "[2,1]",
            "[12]",
            "[\"1\",2]",
            r#"{"a":1,"b":2}"#,
            r#"{ "b": 2, "a": 1 }"#,
            r#"{"a":2,"b":1}"#,
            r#"{"a":{"b":2}}"#,
            r#"{"a":1,"a":2}"#,
            r#"{"a":2}"#,
            r#"{"":null}"#,
            r#"["a",1,"b",2]"#,
            r#"[["a",1],["b",2]]"#,
        ];
        for (a, b) in texts.iter().flat_map(|a| texts.iter().map(move |b| (a, b))) {
            let same = json(a).value() == json(b).value();
            let digest = |text| ReportDigest::completed(Some(&json(text)));
            assert_eq!(digest(a) == digest(b), same, "{a} and {b}");
        }
        assert_eq!(ReportDigest::completed(None), ReportDigest::completed(Some(&Json::null())));
        assert_eq!(ReportDigest::emitted("e", None), ReportDigest::emitted("e", Some(&Json::nothing())));
    }

    #[test]
    fn what_stores_keep_stays_what_it_is() {
        let mut digests = ReportDigests::default();
        let value = r#"{"a":[1,-2,0.5,"é",true,false,null]}"#;
        note(&mut digests, EventType::StepCompleted, "a", 1, &format!(r#"{{"result":{value}}}"#));
        note(&mut digests, EventType::StepRetry, "a", 2, r#"{"error":"broke","code":"x"}"#);
        note(&mut digests, EventType::StepFailed, "a", 3, r#"{"error":"late","code":"timeout"}"#);
        note(&mut digests, EventType::Emit, "b", 1, &format!(r#"{{"name":"paid","payload":{value}}}"#));
        let hex: String = digests.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let attempts = [
            "0161010100396ecb39ea670a283bc92102f0842758",
            "000201013a13d4cce1402cafdd0656c938851c1e",
            "000301027fbe7bffaf37abefee84fefc6ff34f15",
            "016201010399c351962124ad5392255c4b5cbb2e1c",
        ];
        assert_eq!(hex, format!("01{}", attempts.concat()));
    }

    #[test]
    fn the_first_outcome_counts_and_every_emit() {
        let mut digests = ReportDigests::default();
        note(&mut digests, EventType::Emit, "a", 1, r#"{"name":"e","payload":1}"#);
        note(&mut digests, EventType::StepRetry, "a", 1, r#"{"error":"x","code":"c"}"#);
        note(&mut digests, EventType::StepCompleted, "a", 1, r#"{"result":1}"#);
        note(&mut digests, EventType::Emit, "a", 1, r#"{"payload":1,"name":"e"}"#);
        note(&mut digests, EventType::Emit, "a", 1, r#"{"name":"f"}"#);
        note(&mut digests, EventType::StepStarted, "a", 2, "{}");
        note(&mut digests, EventType::StepRetry, "a", 2, r#"{"error":"gone","cause":"lost"}"#);
        note(&mut digests, EventType::StepCompleted, "b", 1, r#"{"result":1,"inherited":true}"#);
        let first = [
            ReportDigest::emitted("e", Some(&json("1"))),
            ReportDigest::failed("x", Some("c")),
            ReportDigest::emitted("f", None),
        ];
        let of = |step: &str, attempt| AttemptOf { step: step.into(), attempt };
        assert_eq!(digests.attempt(&of("a", 1)), first);
        assert_eq!(digests.attempt(&of("a", 2)), [ReportDigest::Unreported]);
        assert_eq!(digests.attempt(&of("b", 1)), [ReportDigest::Unreported]);
        assert_eq!(digests.attempt(&of("b", 2)), []);

        let bytes = digests.encode();
        assert_eq!(bytes.len(), 1 + (4 + 3 * 17) + (3 + 1) + (4 + 1), "few bytes for each");
        assert_eq!(ReportDigests::decode(&bytes).unwrap(), digests);
        assert_eq!(
            ReportDigests::decode(&ReportDigests::default().encode()).unwrap(),
            ReportDigests::default()
        );
        for damaged in [&bytes[1..], &bytes[..bytes.len() - 2], &[], &[FORMAT, 0, 1, 1, 9]] {
            assert!(ReportDigests::decode(damaged).is_err(), "{damaged:?}");
        }
    }
}
