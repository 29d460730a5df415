//! Commit and append: every guard is checked first ([`rule`]), then everything is written.

use flowline_core::{NewEvent, RunKey, Time};

use super::rows::{Memory, StoredRun};
use crate::commit::{Append, AppendError, Base, Commit, CommitError, Committed, Index, NewRun, StateChange};
use crate::row::RunRow;
use crate::rule::{self, FencedLines};
use crate::state::StateSpace;

impl Memory {
    /// Each commit that its guards allow lands, in order; the others leave nothing behind.
    pub fn commit(&mut self, now: Time, batch: Vec<Commit>) -> Vec<Result<Committed, CommitError>> {
        batch.into_iter().map(|commit| self.commit_one(now, commit)).collect()
    }

    /// Answers for each append how many lines of its attempt are in the log now.
    pub fn append(&mut self, now: Time, batch: Vec<Append>) -> Vec<Result<u32, AppendError>> {
        batch.into_iter().map(|append| self.append_one(now, append)).collect()
    }

    fn commit_one(&mut self, now: Time, commit: Commit) -> Result<Committed, CommitError> {
        let found = self.runs.get(&commit.run).map(|run| (run.row.version, &run.jobs));
        rule::check(&commit, now, found, |new| {
            self.definitions.contains_key(&(commit.run.tenant.clone(), new.definition.clone()))
        })?;
        let moves = self.moves(&commit.run, &commit.index, &commit.events);
        match &commit.base {
            Base::New(new) => self.insert_run(now, &commit.run, new.clone(), &commit.index),
            Base::Version(_) if moves => self.unlist(&commit.run),
            Base::Version(_) => {}
        }
        let changes = rule::changes(&commit, now, self.jobs_of(&commit.run), |lane| {
            self.paused.contains(&(commit.run.tenant.clone(), lane.queue.clone()))
        });
        let granted = rule::granted(&changes);
        self.change_jobs(&commit.run, changes);
        let Commit { run, events, state, index, receipts, clear_state, .. } = commit;
        if clear_state {
            self.states.remove(&StateSpace::of_run(&run));
        }
        let ts = self.date(now, &run);
        self.change_receipts(&run, ts, receipts);
        let first_seq = self.runs.get(&run).map_or(0, |run| run.row.events) + 1;
        self.push_events(&run, ts, events);
        let version = self.advance(&run, state, index);
        if moves {
            self.list(&run);
        }
        Ok(Committed { version, first_seq, ts, granted })
    }

    /// Whether a commit moves its run from one list to another: most do not, and listing is what costs.
    fn moves(&self, run: &RunKey, index: &Index, events: &[NewEvent]) -> bool {
        let there = self.runs.get(run).map(|run| (run.row.status, &run.row.state));
        there != Some((index.status, &index.state)) || events.iter().any(|event| event.kind.is_terminal())
    }

    fn insert_run(&mut self, now: Time, key: &RunKey, new: NewRun, index: &Index) {
        let NewRun { flow, definition, step_count, labels, input_digest, idempotency_key, retry_of, retain } =
            new;
        let row = RunRow {
            run_id: key.run.clone(),
            flow_name: flow,
            tenant: key.tenant.clone(),
            definition,
            status: index.status,
            state: index.state.clone(),
            created_at: now,
            started_at: None,
            completed_at: None,
            duration: None,
            step_count,
            completed_steps: 0,
            failed_steps: 0,
            retries: 0,
            failure: None,
            labels,
            idempotency_key,
            retry_of,
            retain,
            version: 0,
            events: 0,
            events_trimmed: false,
            input_digest,
        };
        self.last_run += 1;
        let run = StoredRun::new(self.last_run, row, Vec::new(), now);
        self.runs.insert(key.clone(), run);
    }

    /// The date of what is written to a run's log now.
    pub(super) fn date(&self, now: Time, run: &RunKey) -> Time {
        self.runs.get(run).map_or(now, |run| now.max(run.last))
    }

    /// Replaces a run's state and index, and counts its version up.
    pub(super) fn advance(&mut self, run: &RunKey, state: Vec<u8>, index: Index) -> u64 {
        let Some(run) = self.runs.get_mut(run) else { return 0 };
        let Index { status, state: position, completed_steps, failed_steps, retries, failure } = index;
        run.state = state;
        run.row.version += 1;
        run.row.status = status;
        run.row.state = position;
        run.row.completed_steps = completed_steps;
        run.row.failed_steps = failed_steps;
        run.row.retries = retries;
        if failure.is_some() {
            run.row.failure = failure;
        }
        run.row.version
    }

    fn append_one(&mut self, now: Time, append: Append) -> Result<u32, AppendError> {
        let run = &append.run;
        let FencedLines { new, total } = rule::fence(&append, self.job(run, append.key))?;
        let ts = self.date(now, run);
        for line in new {
            if let Some(change) = &line.state {
                self.change_state_of_run(now, run, change.clone());
            }
            self.push_events(run, ts, [line.event.clone()]);
        }
        self.add_lines(run, append.key, new.len() as u32);
        Ok(total)
    }

    fn change_state_of_run(&mut self, now: Time, run: &RunKey, change: StateChange) {
        let StateChange { scope, edit } = change;
        if let Some(found) = self.runs.get(run) {
            let owner = scope.of(&run.run, &found.row.flow_name);
            self.change_state(now, &StateSpace::new(&run.tenant, owner), edit);
        }
    }
}
