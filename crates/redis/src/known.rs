//! How rows begin that this process wrote or read last.
//!
//! Taking a row apart and putting it together again is most of what a commit would cost the server. So the caller does
//! that: a commit says the first line of the row (it holds the version, the number of events, the jobs, everything that a
//! commit depends on and all that other writes change), and the whole new row. What is remembered here may be stale or
//! forgotten at any time: then the script answers how the row begins, and the commit is said anew.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flowline_store::StoreError;

/// The most runs that are remembered: as many as an instance has in flight, and more. Past that all are forgotten.
const MOST: usize = 16_384;

/// Rows by run.
#[derive(Debug, Default)]
pub(crate) struct KnownRows(Mutex<HashMap<String, KnownRow>>);

impl KnownRows {
    /// What is known of a run, and is not from now on: a commit changes it.
    pub(crate) fn take(&self, run: &str) -> Option<KnownRow> {
        self.rows().remove(run)
    }

    /// Remembers how a row begins. That of a run that has ended is of no use.
    pub(crate) fn keep(&self, run: String, known: KnownRow) {
        if known.head().is_ok_and(|head| head.ended == "-") {
            let mut rows = self.rows();
            if rows.len() >= MOST {
                rows.clear();
            }
            rows.insert(run, known);
        }
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<String, KnownRow>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first line of a row, and the failure in its second.
#[derive(Debug, Clone)]
pub(crate) struct KnownRow {
    pub(crate) line: String,
    pub(crate) failure: String,
}

impl KnownRow {
    pub(crate) fn read(line: &str, second: &str) -> Option<KnownRow> {
        let failure = second.splitn(4, ' ').nth(3)?.to_owned();
        Some(KnownRow { line: line.to_owned(), failure })
    }

    pub(crate) fn head(&self) -> Result<Head<'_>, StoreError> {
        Head::read(&self.line).ok_or_else(|| {
            StoreError::Damaged(format!("a row begins with {:?}, which cannot be read", self.line))
        })
    }
}

/// The first line of a row, taken apart.
#[derive(Debug, Clone)]
pub(crate) struct Head<'a> {
    pub(crate) version: u64,
    /// With the state of a machine behind it.
    pub(crate) status: Cow<'a, str>,
    pub(crate) events: u64,
    pub(crate) last: i64,
    pub(crate) keys: Vec<i64>,
    pub(crate) started: Cow<'a, str>,
    pub(crate) ended: Cow<'a, str>,
    /// Whether events are gone, with how long the definition keeps the run behind it, where it says so.
    pub(crate) kept: Cow<'a, str>,
    pub(crate) number: Cow<'a, str>,
    pub(crate) flow: Cow<'a, str>,
}

impl Head<'_> {
    fn read(line: &str) -> Option<Head<'_>> {
        let mut parts = line.split(' ');
        let mut part = || parts.next();
        let head = Head {
            version: part()?.parse().ok()?,
            status: part()?.into(),
            events: part()?.parse().ok()?,
            last: part()?.parse().ok()?,
            keys: {
                let keys = part()?.split(',').filter(|key| !key.is_empty());
                keys.map(|key| key.parse().ok()).collect::<Option<_>>()?
            },
            started: part()?.into(),
            ended: part()?.into(),
            kept: part()?.into(),
            number: part()?.into(),
            flow: part()?.into(),
        };
        part().is_none().then_some(head)
    }

    /// The line before and after the date of the last event.
    pub(crate) fn around_date(&self) -> (String, String) {
        let Head { version, status, events, keys, started, ended, kept, number, flow, .. } = self;
        let keys: String = keys.iter().map(|key| format!("{key},")).collect();
        (
            format!("{version} {status} {events} "),
            format!(" ,{keys} {started} {ended} {kept} {number} {flow}"),
        )
    }
}
