//! A job as its field in `jobs` has it, and as people see it.

use std::sync::Arc;

use flowline_core::Time;
use flowline_core::definition::Priority;
use flowline_store::{JobKey, JobRow, JobState, Lane, StoreError, Token};

use crate::answer::number;
use crate::names;

/// A job as its field in `jobs` has it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) token: Option<Token>,
    pub(crate) lines: u32,
    pub(crate) expires: Time,
    pub(crate) released: bool,
    pub(crate) worker: Arc<str>,
    pub(crate) attempt: u32,
    pub(crate) name: Arc<str>,
    pub(crate) lane: Lane,
    leased_at: Time,
    priority: Priority,
    due: Time,
    held: bool,
}

impl Job {
    pub(crate) fn read(text: &str) -> Result<Job, StoreError> {
        let damaged = || StoreError::Damaged(format!("{text:?} is not a job"));
        let parts: Vec<&str> = text.split(' ').collect();
        let &[
            token,
            attempt,
            lines,
            expires,
            released,
            leased,
            _,
            worker,
            priority,
            due,
            held,
            name,
            queue,
            need,
        ] = &parts[..]
        else {
            return Err(damaged());
        };
        let time = |text: &str| number(text).map(Time::from_millis);
        let name_of = |part: &str| names::decode(part).map(Arc::from);
        Ok(Job {
            token: match token {
                "-" => None,
                hex => Some(Token(u128::from_str_radix(hex, 16).map_err(|_| damaged())?)),
            },
            lines: number(lines)?,
            expires: time(expires)?,
            released: released == "1",
            worker: name_of(worker)?,
            attempt: number(attempt)?,
            name: name_of(name)?,
            lane: Lane { queue: name_of(queue)?, need: name_of(need)? },
            leased_at: time(leased)?,
            priority: *Priority::ALL.get(number::<usize>(priority)?).ok_or_else(damaged)?,
            due: time(due)?,
            held: held == "1",
        })
    }

    pub(crate) fn row(self, key: JobKey) -> JobRow {
        let leased = self.token.is_some();
        JobRow {
            key,
            name: self.name,
            attempt: self.attempt,
            queue: self.lane.queue,
            need: self.lane.need,
            priority: self.priority,
            due: self.due,
            state: match (leased, self.held) {
                (true, _) => JobState::Leased,
                (false, true) => JobState::Held,
                (false, false) => JobState::Waiting,
            },
            worker: leased.then_some(self.worker),
            leased_at: leased.then_some(self.leased_at),
            expires: leased.then_some(self.expires),
            lines: self.lines,
        }
    }
}
