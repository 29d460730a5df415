//! Reports of workers: heartbeats, lines, emits, outcomes, and attempts they give back.
//!
//! Each is fenced by the lease and can be repeated: lines say where they start, and emits and outcomes are identified by
//! their attempt. The first report writes `step.started`; an outcome takes it along, so that an attempt that reports nothing
//! else is one write.

use std::time::Duration;

use flowline_core::event::{EventType, NewEvent};
use flowline_core::limits::format_bytes;
use flowline_core::{Json, RunKey, Time, json};
use flowline_store::{Append, AppendLine, EventQuery, Extend, Extended, Gone, StateOwner, StateSpace};
use tokio::sync::oneshot;

use super::lease::Lease;
use super::{Appended, AttemptEnding, Beat, Planned, REMOTE, Remote, Said, stale};
use crate::attempt::record::log_data;
use crate::attempt::{Attempt, Record, out_of_time_error, started_data};
use crate::drive::host::InputCaller;
use crate::drive::{DriverMessage, Reply};
use crate::engine::EngineError;
use crate::ledger::{InputEntry, InputOutcome};
use crate::operate::Applied;
use crate::step::StepError;
use crate::trace::{self, SpanEnd};

/// Beyond a deadline a lease is kept for one more heartbeat and this long, so that it is the heartbeat that finds the time
/// to be up.
const LATE: Duration = Duration::from_secs(2);
/// A line of up to so many bytes is taken beyond the limit of what may be logged: a worker can note that it stops there.
const NOTE: usize = 1 << 10;
/// How long a report waits for a store that is in trouble.
const TROUBLE: Duration = Duration::from_secs(2);

/// An attempt that a worker believes to hold.
struct WorkerAttempt {
    attempt: Attempt,
    lease: Lease,
}

impl Remote {
    /// Keeps leases alive, acknowledges those that are new, and tells which are gone. In order.
    pub async fn heartbeat(&self, leases: &[String]) -> Result<Vec<Beat>, EngineError> {
        let mut beats = vec![Beat::Lost; leases.len()];
        let mut held = Vec::with_capacity(leases.len());
        for (at, lease) in leases.iter().enumerate() {
            match self.open(lease).await {
                Ok(worker) => held.push((at, worker)),
                Err(EngineError::StaleLease(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let now = match held.iter().any(|(_, worker)| worker.lease.deadline.is_some()) {
            true => self.engine.shared.store.now().await?,
            false => Time::default(),
        };
        let late = |worker: &WorkerAttempt| worker.lease.deadline.is_some_and(|deadline| deadline <= now);
        let (late, held): (Vec<_>, Vec<_>) = held.into_iter().partition(|(_, worker)| late(worker));
        for (at, worker) in late {
            beats[at] = self.time_out(&leases[at], worker).await?;
        }
        self.keep(held, now, &mut beats).await?;
        Ok(beats)
    }

    async fn keep(
        &self,
        held: Vec<(usize, WorkerAttempt)>,
        now: Time,
        beats: &mut [Beat],
    ) -> Result<(), EngineError> {
        let workers: Vec<&WorkerAttempt> = held.iter().map(|(_, worker)| worker).collect();
        let begun = self.begin(&workers).await?;
        let lease = self.engine.shared.config.lease;
        let until = |worker: &WorkerAttempt| match worker.lease.deadline {
            Some(deadline) => lease.min((deadline + lease / 3 + LATE).since(now)),
            None => lease,
        };
        let mut by_length: std::collections::BTreeMap<Duration, Vec<(usize, bool, Extend)>> =
            Default::default();
        for ((at, worker), begun) in held.iter().zip(begun) {
            let kept = (*at, begun.is_ok(), worker.attempt.lease());
            by_length.entry(until(worker)).or_default().push(kept);
        }
        for (length, group) in by_length {
            let leases = group.iter().map(|(.., extend)| extend.clone()).collect();
            let extended = self.engine.shared.store.extend(leases, length).await?;
            for ((at, begun, _), extended) in group.into_iter().zip(extended) {
                beats[at] = match extended {
                    Extended::Held if begun => Beat::Held,
                    Extended::Gone(Gone::RunEnded) => Beat::Cancelled,
                    _ => Beat::Lost,
                };
            }
        }
        Ok(())
    }

    async fn time_out(&self, lease: &str, worker: WorkerAttempt) -> Result<Beat, EngineError> {
        let ending = AttemptEnding {
            lease: lease.to_owned(),
            outcome: Err(out_of_time_error(worker.attempt.timeout().unwrap_or_default())),
            emits: Vec::new(),
        };
        match self.complete(vec![ending]).await.pop() {
            Some(Ok(_)) => Ok(Beat::TimedOut),
            Some(Err(EngineError::StaleLease(_))) | None => Ok(Beat::Lost),
            Some(Err(error)) => Err(error),
        }
    }

    /// Adds lines to the log of an attempt. `from_line` is how many of its lines its worker knows to be there: those sent
    /// again are skipped. Once the attempt is over, only lines that are in the log are taken.
    pub async fn append(
        &self,
        lease: &str,
        from_line: u32,
        lines: Vec<Said>,
    ) -> Result<Appended, EngineError> {
        let refused = |error: StepError| EngineError::Invalid(error.0.error);
        let worker = self.open(lease).await?;
        self.may_use_state(&worker.attempt, &lines).await?;
        let begun = self.begin(&[&worker]).await?.pop().unwrap_or(Ok(()));
        let WorkerAttempt { attempt, .. } = worker;
        // Line 0 is `step.started`, which the worker does not count.
        let mut record = Record::after(attempt.clone(), from_line.saturating_add(1));
        let (mut asked, mut logged) = (Vec::new(), Vec::new());
        for line in lines {
            match line {
                Said::Log { level, message, fields } => {
                    let line = log_data(level, &message, Some(fields));
                    logged.push(line.get().len());
                    record.log_line(line);
                }
                Said::Set { scope, key, value, ttl } => {
                    let limit = self.engine.shared.config.limits.payload();
                    let value = value.within(&format!("state {key:?}"), limit);
                    let value = value.map_err(|error| EngineError::Refused(error.into()))?;
                    record.set(scope, &key, Some(value), ttl).map_err(refused)?;
                }
                Said::Delete { scope, key } => record.set(scope, &key, None, None).map_err(refused)?,
                Said::Get { scope, key } => {
                    record.get(&scope, &key).map_err(refused)?;
                    asked.push((scope.of(&attempt.run.run, &attempt.plan.flow), key));
                }
            }
        }
        let Some(append) = record.append() else {
            return Ok(Appended { lines: from_line, found: Vec::new() });
        };
        if begun.is_ok() {
            self.has_room(&attempt, &logged)?;
        }
        let store = &self.engine.shared.store;
        let written = match begun {
            Ok(()) => store.append(vec![append.clone()]).await?.pop(),
            Err(EngineError::StaleLease(_)) => None,
            Err(error) => return Err(error),
        };
        let lines = match written {
            Some(Ok(written)) => written.saturating_sub(1),
            _ => self.written_before(&attempt, &append).await?,
        };
        let mut found = Vec::with_capacity(asked.len());
        for (owner, key) in asked {
            let space = StateSpace::new(&attempt.run.tenant, owner);
            found.push(store.state(&space, &key).await?.map(|found| found.value));
        }
        Ok(Appended { lines, found })
    }

    /// Refuses state that all flows share to a definition whose author was bound: the author may not see it either.
    async fn may_use_state(&self, attempt: &Attempt, lines: &[Said]) -> Result<(), EngineError> {
        let is_shared = |line: &Said| match line {
            Said::Set { scope, .. } | Said::Delete { scope, .. } | Said::Get { scope, .. } => {
                let owner = scope.of(&attempt.run.run, &attempt.plan.flow);
                matches!(owner, StateOwner::Tenant | StateOwner::Named(_))
            }
            Said::Log { .. } => false,
        };
        if !lines.iter().any(is_shared) || self.engine.author_of(&attempt.plan.hash).await?.is_unbound() {
            return Ok(());
        }
        let text = "this definition was registered with a token that's bound to flows or queues, so its steps can't use state that all flows share; use the scope `run` or `flow`, or register it with a token that isn't bound";
        Err(EngineError::Invalid(text.to_owned()))
    }

    /// Refuses log lines of these sizes if the attempt, or its run, has logged as much as it may.
    fn has_room(&self, attempt: &Attempt, logged: &[usize]) -> Result<(), EngineError> {
        let shared = &self.engine.shared;
        let mut limits = shared.config.limits;
        if let [bytes] = logged
            && *bytes <= NOTE
        {
            limits.log += 2 * NOTE;
            limits.run_log += 2 * NOTE;
        }
        let bytes = logged.iter().sum();
        let room = shared
            .remote
            .logged(attempt.token, |logged| logged.try_add(&shared.tally, &attempt.run, bytes, &limits));
        room.map_err(|_| {
            let limits = shared.config.limits;
            let [log, run_log] = [limits.log, limits.run_log].map(format_bytes);
            EngineError::LogFull(format!(
                "no more can be logged: an attempt may log {log} (setting max-log), and a run {run_log} (max-run-log)"
            ))
        })
    }

    /// How many lines of an attempt are in the log, if these are among them.
    async fn written_before(&self, attempt: &Attempt, append: &Append) -> Result<u32, EngineError> {
        let mut query = EventQuery {
            kinds: vec![EventType::Log, EventType::State],
            step: Some(attempt.name().to_string()),
            attempt: Some(append.attempt),
            ..EventQuery::default()
        };
        // Line 0 is `step.started`.
        let (mut there, mut missing) = (1, append.lines.iter());
        loop {
            let page = self.engine.shared.store.events(&append.run, query.clone()).await?;
            for event in &page.events {
                let line = if there >= append.from_line { missing.next() } else { None };
                let said = |data: &Option<Json>| data.as_ref().map(Json::value);
                let differs = |line: &AppendLine| {
                    line.event.kind != event.kind || said(&line.event.data) != said(&event.data)
                };
                if line.is_some_and(differs) {
                    return Err(stale(
                        "the attempt isn't held by this worker, and these lines aren't in the log",
                    ));
                }
                there += 1;
            }
            match page.events.last() {
                Some(last) if page.more => query.after = last.seq,
                _ => break,
            }
        }
        match missing.next() {
            Some(_) => Err(stale("the attempt isn't held by this worker, or earlier lines are missing")),
            None => Ok(there - 1),
        }
    }

    /// Publishes an event in the middle of an attempt. One that this attempt has published already changes nothing.
    pub async fn emit(&self, lease: &str, name: &str, payload: Json) -> Result<Applied, EngineError> {
        let worker = self.open(lease).await?;
        for begun in self.begin(&[&worker]).await? {
            match begun {
                // The emit will be refused in the same way; or it is in the log already.
                Ok(()) | Err(EngineError::StaleLease(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let run = worker.attempt.run.clone();
        self.offer(run, |reply| Record::after(worker.attempt, 1).emit_now(name, payload, reply)).await
    }

    /// Reports how attempts ended. Each is answered once it is committed, in order. One that is in the log already changes
    /// nothing, however long ago its attempt ended; another outcome of an attempt that was reported is refused
    /// ([`Refusal::OtherOutcome`](flowline_core::decide::Refusal::OtherOutcome)).
    pub async fn complete(&self, endings: Vec<AttemptEnding>) -> Vec<Result<Applied, EngineError>> {
        let mut opened = Vec::with_capacity(endings.len());
        for ending in endings {
            opened.push(self.open(&ending.lease).await.map(|worker| (worker, ending)));
        }
        // The commit of an outcome takes the first line along; only a wait must be over before.
        let delayed = |worker: &&WorkerAttempt| worker.lease.delayed;
        let workers = opened.iter().flatten().map(|(worker, _)| worker);
        let workers: Vec<&WorkerAttempt> = workers.filter(delayed).collect();
        let mut begun = match self.begin(&workers).await {
            Ok(begun) => begun.into_iter(),
            Err(error) => return opened.iter().map(|_| Err(again(&error))).collect(),
        };
        let mut answers = Vec::with_capacity(opened.len());
        for opened in opened {
            answers.push(opened.and_then(|(worker, AttemptEnding { outcome, emits, .. })| {
                match worker.lease.delayed.then(|| begun.next()).flatten() {
                    // The outcome will be refused in the same way; or it is in the log already.
                    Some(Ok(()) | Err(EngineError::StaleLease(_))) | None => {}
                    Some(Err(error)) => return Err(error),
                }
                let has_begun =
                    worker.lease.delayed || self.engine.shared.remote.has_begun(worker.attempt.token);
                let first = (!has_begun).then(|| worker.first_event());
                let WorkerAttempt { attempt, lease } = worker;
                let (token, run) = (attempt.token, attempt.run.clone());
                // From its claim until now.
                let span = || attempt.span((lease.claimed, trace::now()), SpanEnd::of(&outcome));
                let span = self.engine.shared.meters.spans.as_ref().and_then(|_| span());
                let mut record = Record::after(attempt, 1);
                emits.into_iter().for_each(|(name, payload)| record.emit(&name, payload));
                self.engine.shared.remote.forget(token);
                let (reply, answer) = oneshot::channel();
                let entry = record.finish(outcome, Reply::Caller(reply.into()));
                let entry = match first {
                    Some(first) => entry.with_first_line(first),
                    None => entry,
                };
                self.engine.shared.mail(DriverMessage::Finished(token, run, entry))?;
                Ok((answer, span))
            }));
        }
        let mut reported = Vec::with_capacity(answers.len());
        for answer in answers {
            reported.push(match answer {
                Ok((answer, span)) => {
                    let outcome = self.outcome(answer).await;
                    if let (Some(spans), Ok(Applied { changed: true, .. })) =
                        (&self.engine.shared.meters.spans, &outcome)
                    {
                        spans.put(span);
                    }
                    outcome
                }
                Err(error) => Err(error),
            });
        }
        reported
    }

    /// Gives attempts back. Their next ones start elsewhere and count neither as failed nor as lost.
    pub async fn release(&self, leases: &[String]) -> Result<(), EngineError> {
        let mut held = Vec::with_capacity(leases.len());
        for lease in leases {
            match self.open(lease).await {
                Ok(worker) => held.push(worker.attempt.lease()),
                Err(EngineError::StaleLease(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if !held.is_empty() {
            self.engine.shared.store.release(held).await?;
        }
        Ok(())
    }

    /// The attempt that a reference names. Whether it is held is for the store to say.
    async fn open(&self, lease: &str) -> Result<WorkerAttempt, EngineError> {
        let sealer = self.engine.shared.sealer().await?;
        let lease = Lease::decode(lease, sealer, self.engine.tenant());
        let lease = lease.ok_or_else(|| stale("this isn't a valid lease"))?;
        let run = self.engine.key(&lease.run);
        let (plan, trace) = self.plan_of(&run).await?;
        let step = plan.steps.get(lease.step as usize);
        let bound =
            |queue: &str| self.queues.as_ref().is_none_or(|queues| queues.iter().any(|own| own == queue));
        if step.is_none_or(|step| *step.need != *REMOTE || !bound(&step.queue)) {
            return Err(stale("this isn't a valid lease"));
        }
        let (step, number, token) = (lease.step, lease.attempt, lease.token);
        // Its transition is known where it was claimed, and in what its worker was told then.
        let attempt = Attempt { run, plan, trace, step, number, transition: None, token };
        Ok(WorkerAttempt { attempt, lease })
    }

    async fn plan_of(&self, run: &RunKey) -> Result<Planned, EngineError> {
        let shared = &self.engine.shared;
        if let Some(planned) = shared.remote.plan(run) {
            return Ok(planned);
        }
        let found = shared.store.load(std::slice::from_ref(run)).await?.into_iter().next().flatten();
        let row = found.ok_or_else(|| stale("its run doesn't exist"))?.row;
        let plan = shared.plans.get(&*shared.store, &run.tenant, &row.definition).await?;
        let trace = trace::of_labels(&row.labels);
        shared.remote.keep_plan(run, (plan.clone(), trace.clone()));
        Ok((plan, trace))
    }

    /// Writes `step.started` for those attempts that have not said a word yet. In order.
    async fn begin(&self, workers: &[&WorkerAttempt]) -> Result<Vec<Result<(), EngineError>>, EngineError> {
        let shared = &self.engine.shared;
        let mut begun: Vec<Result<(), EngineError>> = Vec::with_capacity(workers.len());
        let (mut appends, mut places) = (Vec::new(), Vec::new());
        for (at, worker) in workers.iter().enumerate() {
            begun.push(Ok(()));
            if shared.remote.has_begun(worker.attempt.token) {
                continue;
            }
            if worker.lease.delayed {
                begun[at] = self.end_wait(worker).await;
                continue;
            }
            appends.push(worker.first_line());
            places.push(at);
        }
        if !appends.is_empty() {
            for (at, answer) in places.into_iter().zip(shared.store.append(appends).await?) {
                begun[at] = answer.map(|_| ()).map_err(|_| stale("it isn't held by this worker"));
            }
        }
        for (worker, _) in workers.iter().zip(&begun).filter(|(_, begun)| begun.is_ok()) {
            shared.remote.keep_begun(worker.attempt.token);
        }
        Ok(begun)
    }

    /// The first line of a delayed attempt is a commit: the run's status follows from it.
    async fn end_wait(&self, worker: &WorkerAttempt) -> Result<(), EngineError> {
        let (input, lease) = worker.attempt.end_wait(worker.started());
        let entry = |reply| InputEntry::new(input, Vec::new(), Some(lease), reply);
        self.offer(worker.attempt.run.clone(), entry).await.map(|_| ())
    }

    async fn offer(
        &self,
        run: RunKey,
        entry: impl FnOnce(Reply<InputCaller>) -> InputEntry<Reply<InputCaller>>,
    ) -> Result<Applied, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.engine.shared.mail(DriverMessage::Offer(run, entry(Reply::Caller(reply.into()))))?;
        self.outcome(answer).await
    }

    /// Waits for the outcome of an input, but not for long if the store accepts no writes: the report can be repeated.
    async fn outcome(&self, mut answer: oneshot::Receiver<InputOutcome>) -> Result<Applied, EngineError> {
        let outcome = loop {
            match tokio::time::timeout(TROUBLE, &mut answer).await {
                Ok(outcome) => break outcome.map_err(|_| EngineError::Stopped)?,
                Err(_) => {
                    if let Some(trouble) = self.engine.trouble().borrow().clone() {
                        return Err(EngineError::Store(trouble));
                    }
                }
            }
        };
        match outcome {
            InputOutcome::Committed { status } => Ok(Applied { changed: true, status }),
            InputOutcome::Applied { status } => Ok(Applied { changed: false, status }),
            InputOutcome::StaleLease(Some(why)) => Err(stale(&why.to_string())),
            InputOutcome::StaleLease(None) => Err(stale("it isn't held by this worker")),
            InputOutcome::NotFound => Err(stale("its run doesn't exist")),
            InputOutcome::Exists => Err(stale("its run was just started")),
            InputOutcome::Failed(error) => Err(EngineError::Store(error)),
            InputOutcome::Refused(refusal) => Err(EngineError::Refused(refusal)),
        }
    }
}

impl WorkerAttempt {
    fn started(&self) -> Json {
        let Lease { worker, instance, claimed, .. } = &self.lease;
        started_data(&json::string(worker), &json::string(instance), Some(*claimed))
    }

    fn first_event(&self) -> NewEvent {
        self.attempt.event(EventType::StepStarted, self.started())
    }

    fn first_line(&self) -> Append {
        let event = self.first_event();
        Append {
            run: self.attempt.run.clone(),
            key: self.attempt.key(),
            attempt: self.attempt.number,
            token: self.attempt.token,
            from_line: 0,
            lines: vec![AppendLine { event, state: None }],
        }
    }
}

/// The same error, for each report of a batch.
fn again(error: &EngineError) -> EngineError {
    match error {
        EngineError::Store(error) => EngineError::Store(error.clone()),
        EngineError::Stopped => EngineError::Stopped,
        other => EngineError::Invalid(other.to_string()),
    }
}
