//! A job as its field in `jobs` has it, and as people see it.

use std::sync::Arc;

use flowline_core::Time;
use flowline_core::definition::Priority;
use flowline_store::{JobKey, JobRow, JobState, Lane, NewJob, StoreError, Token};

use crate::answer::number;
use crate::args::ScriptArgs;
use crate::encode::end_of_job;
use crate::names;

/// A job as its field in `jobs` has it.
#[derive(Debug)]
pub(crate) struct JobField {
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
    pub(crate) due: Time,
    held: bool,
}

impl JobField {
    pub(crate) fn read(text: &str) -> Result<JobField, StoreError> {
        let damaged = || StoreError::Damaged(format!("{text:?} isn't a job"));
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
        Ok(JobField {
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
            released: leased && self.released,
        }
    }
}

/// The text of a job that is restored. A lease gets the token.
pub(crate) fn write(args: &mut ScriptArgs, job: &JobRow, token: Token, number: u64) {
    let leased = job.state == JobState::Leased;
    match leased {
        true => args.part(format_args!("{:032x} ", token.0)),
        false => args.part_bytes(b"- "),
    };
    let millis = |date: Option<Time>| date.filter(|_| leased).unwrap_or_default().millis();
    let (expires, leased_at) = (millis(job.expires), millis(job.leased_at));
    let (attempt, lines, released) = (job.attempt, job.lines, u8::from(job.released));
    args.part(format_args!("{attempt} {lines} {expires} {released} {leased_at} {number} "));
    let new = NewJob {
        key: job.key,
        name: job.name.clone(),
        attempt,
        lane: job.lane(),
        priority: job.priority,
        due: job.due,
        held: job.state == JobState::Held,
        handoff: None,
    };
    end_of_job(args, job.worker.as_deref().filter(|_| leased), &new);
}
