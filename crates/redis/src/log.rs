//! A run's log: a stream whose entries hold some events each.
//!
//! The id of an entry is `<ms>-<seq>` of its last event. Its field `events` has a line of each, `BYTES TYPE STEP ATTEMPT SLOT
//! DATA`: the bytes after the first space tell where the line ends, whatever the data holds. Entries of the format before
//! have one event in a field `event`, without its bytes.

use std::borrow::Cow;
use std::sync::Arc;

use flowline_core::event::{AttemptOf, split_duration};
use flowline_core::{Event, EventType, Json, NewEvent, RunKey};
use flowline_store::StoreError;
use redis::Value;

use crate::answer::{list, number, text};
use crate::args::ScriptArgs;
use crate::names;

/// The most events in an entry, and the bytes that fill one, as scripts have them: who looks for one event reads few others.
const EVENTS: usize = 16;
const BYTES: usize = 1 << 16;
/// The width of the duration in a terminal event, whose data ends with it: a script puts it in.
const DURATION: usize = 15;

/// Events in the parts that make an entry each.
pub(crate) fn entries(events: &[NewEvent]) -> impl Iterator<Item = &[NewEvent]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let full = |event: &NewEvent| {
            bytes += event.data.as_ref().map_or(0, |data| data.get().len());
            bytes >= BYTES
        };
        let size = rest.iter().take(EVENTS - 1).position(full).map_or(EVENTS, |last| last + 1);
        let (entry, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        Some(entry)
    })
}

/// Writes the line of an event to the argument that is being made.
pub(crate) fn event(args: &mut ScriptArgs, event: &NewEvent) {
    let mut head = Vec::with_capacity(64);
    head.extend_from_slice(event.kind.as_str().as_bytes());
    head.push(b' ');
    match &event.of {
        Some(of) => {
            names::encode_into(&mut head, &of.step);
            head.push(b' ');
            head.extend_from_slice(of.attempt.to_string().as_bytes());
        }
        None => head.extend_from_slice(b"- -"),
    }
    match event.slot {
        Some(slot) => head.extend_from_slice(format!(" {} ", slot.number()).as_bytes()),
        None => head.extend_from_slice(b" - "),
    }
    let mut data = Cow::Borrowed(event.data.as_ref().map_or("", |data| data.get()));
    if event.kind.is_terminal()
        && let Some((before, duration)) = split_duration(&data)
    {
        data = format!("{before}{duration:>DURATION$}}}").into();
    }
    args.part(format_args!("{} ", head.len() + data.len()));
    args.part_bytes(&head).part_bytes(data.as_bytes()).part_bytes(b"\n");
}

/// What entries of a stream hold, as `XRANGE` gave them.
#[derive(Debug)]
pub(crate) struct Entries {
    pub(crate) events: Vec<Event>,
    /// The id of the last entry.
    pub(crate) last: Option<String>,
}

/// Reads entries of a run's log.
pub(crate) fn read(run: &RunKey, flow: &Arc<str>, found: Value) -> Result<Entries, StoreError> {
    let mut entries = Entries { events: Vec::new(), last: None };
    for entry in list(found)? {
        let mut entry = list(entry)?.into_iter();
        let id = text(entry.next().unwrap_or_default())?;
        let damaged = || StoreError::Damaged(format!("can't read entry {id} of the log of run {run}"));
        let (ms, seq) = id.split_once('-').ok_or_else(damaged)?;
        let (ms, seq) = (number(ms)?, number::<u64>(seq)?);
        let mut fields = list(entry.next().unwrap_or_default())?.into_iter();
        let field = text(fields.next().unwrap_or_default())?;
        let found = text(fields.next().unwrap_or_default())?;
        let events = match field.as_str() {
            "event" => vec![read_event(&found).ok_or_else(damaged)?],
            _ => read_lines(&found).ok_or_else(damaged)?,
        };
        let first = (seq + 1).checked_sub(events.len() as u64).ok_or_else(damaged)?;
        for (seq, event) in (first..).zip(events) {
            entries.events.push(Event::stored(&run.run, flow, &run.tenant, seq, ms, event));
        }
        entries.last = Some(id);
    }
    Ok(entries)
}

fn read_lines(mut rest: &str) -> Option<Vec<NewEvent>> {
    let mut events = Vec::new();
    while !rest.is_empty() {
        let (bytes, after) = rest.split_once(' ')?;
        let (event, after) = after.split_at_checked(bytes.parse().ok()?)?;
        events.push(read_event(event)?);
        rest = after.strip_prefix('\n')?;
    }
    Some(events)
}

/// Reads `TYPE STEP ATTEMPT SLOT DATA`.
fn read_event(text: &str) -> Option<NewEvent> {
    let mut parts = text.splitn(5, ' ');
    let (kind, step, attempt, _, data) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let of = match attempt {
        "-" => None,
        attempt => Some(AttemptOf { step: names::decode(step).ok()?.into(), attempt: number(attempt).ok()? }),
    };
    let kind = EventType::parse(kind)?;
    let mut data = data.to_owned();
    if kind.is_terminal()
        && let Some((before, duration)) = split_duration(&data)
    {
        data = format!("{before}{duration}}}");
    }
    let data = Some(data).filter(|data| !data.is_empty()).map(Json::composed);
    Some(NewEvent { kind, of, data, slot: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(kind: EventType, data: &str) -> NewEvent {
        let of = Some(AttemptOf { step: "a b".into(), attempt: 2 });
        NewEvent { kind, of, data: Some(Json::composed(data.to_owned())), slot: None }
    }

    fn entry(id: &str, field: &str, value: &[u8]) -> Value {
        let text = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
        Value::Array(vec![text(id.as_bytes()), Value::Array(vec![text(field.as_bytes()), text(value)])])
    }

    fn read_back(entries: Vec<Value>) -> Vec<(u64, String, Option<String>)> {
        let run = names::read_run("t/r").unwrap();
        let read = read(&run, &"f".into(), Value::Array(entries)).unwrap();
        let shown = |event: Event| {
            (event.seq, event.kind.as_str().to_owned(), event.data.map(|data| data.get().to_owned()))
        };
        read.events.into_iter().map(shown).collect()
    }

    #[test]
    fn events_of_an_entry_come_back_whatever_their_data_holds() {
        let data = ["{\n \"a\": 1\n}", "", "\"é 12 x\""];
        let events = data.map(|data| new(EventType::Log, data));
        let mut args = ScriptArgs::new();
        events.iter().for_each(|one| event(&mut args, one));
        args.end();
        let text = args.iter().next().unwrap().to_vec();
        let read = read_back(vec![entry("5-9", "events", &text)]);
        let kept = data.map(|data| Some(data.to_owned()).filter(|data| !data.is_empty()));
        let expected: Vec<_> = (7..).zip(kept).map(|(seq, data)| (seq, "log".to_owned(), data)).collect();
        assert_eq!(read, expected);
        assert_eq!(read_lines(&format!("{}x", String::from_utf8(text).unwrap())), None);
    }

    #[test]
    fn an_entry_of_the_format_before_is_one_event() {
        let read = read_back(vec![entry("5-1", "event", b"flow.start - - - {}")]);
        assert_eq!(read, [(1, "flow.start".to_owned(), Some("{}".to_owned()))]);
    }

    #[test]
    fn entries_are_small_and_leave_nothing_out() {
        let sizes = |events: &[NewEvent]| entries(events).map(<[NewEvent]>::len).collect::<Vec<_>>();
        let small = vec![new(EventType::Log, "1"); 40];
        assert_eq!(sizes(&small), [16, 16, 8]);
        assert_eq!(sizes(&small[..3]), [3]);
        assert_eq!(sizes(&[]), [0; 0]);
        let large = vec![new(EventType::Log, &"1".repeat(BYTES / 2)); 5];
        assert_eq!(sizes(&large), [2, 2, 1]);
    }
}
