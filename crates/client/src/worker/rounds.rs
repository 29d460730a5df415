//! A running worker: the jobs it holds, the requests in flight, and what to do next.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::{Handler, Stop, attempt};
use crate::client::Client;
use crate::error::ClientError;
use crate::job::Job;
use flowline_api::work::{self as wire, Beat, Times};

/// How long an attempt may go without a word: quick ones are reported before that, and cost no heartbeat.
const ACKNOWLEDGE: Duration = Duration::from_millis(50);
/// The shortest pause between heartbeats, whatever the server says.
const SHORTEST_BEAT: Duration = Duration::from_millis(20);
/// The pause after a request that failed.
const AGAIN: Duration = Duration::from_millis(250);
/// What is believed of leases until the server has said.
const TIMES: Times = Times { lease_ms: 30_000, heartbeat_ms: 10_000, acknowledge_ms: 5_000 };
/// Outcomes in one report: so many, and in bytes, but for the first.
const REPORT: usize = 100;
const REPORT_BYTES: usize = 4 << 20;
/// How long a stopping worker tries to give back its jobs.
const GIVE_BACK: Duration = Duration::from_secs(5);

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, ClientError>> + Send>>;

pub(super) struct Rounds {
    client: Client,
    ask: wire::ClaimRequest,
    slots: usize,
    drain: Duration,
    handler: Handler,
    times: Times,
    jobs: JoinSet<Result<wire::AttemptOutcome, String>>,
    /// Attempts that run here or whose outcomes are not reported yet, by lease.
    held: HashMap<String, AbortHandle>,
    /// Outcomes to report.
    ready: Vec<wire::AttemptOutcome>,
    /// Slots that requests under way may fill.
    asked: usize,
    claim: Option<(usize, Answer<wire::ClaimAnswer>)>,
    report: Option<Report>,
    beat: Option<Answer<wire::HeartbeatAnswer>>,
    /// Attempts that the server has not heard of since it gave them out.
    fresh: Vec<String>,
    acknowledge_at: Option<Instant>,
    beat_at: Instant,
    claim_at: Instant,
    stop_by: Option<Instant>,
    /// A report was refused for its content: the next ones go one by one, to find out which.
    one_by_one: usize,
}

/// Outcomes on their way.
struct Report {
    outcomes: Vec<wire::AttemptOutcome>,
    /// Slots beyond theirs that it asked for.
    asked: usize,
    answer: Answer<wire::CompleteAnswer>,
}

impl Rounds {
    pub(super) fn new(
        client: Client,
        ask: wire::ClaimRequest,
        slots: usize,
        drain: Duration,
        handler: Handler,
    ) -> Rounds {
        let now = Instant::now();
        Rounds {
            client,
            ask,
            slots,
            drain,
            handler,
            times: TIMES,
            jobs: JoinSet::new(),
            held: HashMap::new(),
            ready: Vec::new(),
            asked: 0,
            claim: None,
            report: None,
            beat: None,
            fresh: Vec::new(),
            acknowledge_at: None,
            beat_at: now,
            claim_at: now,
            stop_by: None,
            one_by_one: 0,
        }
    }

    pub(super) async fn run(mut self, mut stop: Stop) -> Result<(), ClientError> {
        loop {
            self.report();
            self.ask_for_work();
            self.send_heartbeat();
            if self.stop_by.is_some() && self.held.is_empty() {
                return Ok(());
            }
            let wake = self.wake_at();
            tokio::select! {
                () = &mut stop, if self.stop_by.is_none() => self.stop(),
                Some(ended) = self.jobs.join_next() => self.ended(ended),
                answer = answer(self.claim.as_mut().map(|(_, answer)| answer)) => self.claimed(answer)?,
                answer = answer(self.report.as_mut().map(|report| &mut report.answer)) => self.reported(answer)?,
                answer = answer(self.beat.as_mut()) => self.beaten(answer),
                () = sleep_until(wake) => {
                    if self.stop_by.is_some_and(|by| by <= Instant::now()) {
                        return self.give_back().await;
                    }
                }
            }
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.times.lease_ms)
    }

    fn free(&self) -> usize {
        self.slots.saturating_sub(self.held.len() + self.asked)
    }

    fn request(&self, limit: usize, wait_ms: u64) -> wire::ClaimRequest {
        wire::ClaimRequest { limit: u32::try_from(limit).unwrap_or(u32::MAX), wait_ms, ..self.ask.clone() }
    }

    /// When something is to be done that no answer wakes for.
    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        let mut wake = now + self.lease();
        if self.beat.is_none() {
            wake = wake.min(self.beat_at).min(self.acknowledge_at.unwrap_or(wake));
        }
        if self.claim.is_none() && self.stop_by.is_none() && self.free() > 0 {
            wake = wake.min(self.claim_at);
        }
        self.stop_by.map_or(wake, |by| wake.min(by))
    }

    fn ask_for_work(&mut self) {
        let limit = self.free();
        if limit == 0 || self.claim.is_some() || self.stop_by.is_some() || self.claim_at > Instant::now() {
            return;
        }
        self.asked += limit;
        let (client, request) = (self.client.clone(), self.request(limit, wire::WAIT_MS));
        self.claim = Some((limit, Box::pin(async move { client.claim(&request).await })));
    }

    fn claimed(&mut self, answer: Result<wire::ClaimAnswer, ClientError>) -> Result<(), ClientError> {
        if let Some((limit, _)) = self.claim.take() {
            self.asked -= limit;
        }
        match answer {
            Ok(answer) => {
                self.times = answer.times;
                self.start(answer.jobs);
                Ok(())
            }
            Err(error) if error.is_transient() => {
                let pause = AGAIN.mul_f64(0.5 + fastrand::f64());
                self.claim_at = Instant::now() + pause.max(error.retry_after().unwrap_or_default());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn start(&mut self, jobs: Vec<wire::Assignment>) {
        for assignment in jobs {
            let lease = assignment.lease.clone();
            let job = Job::new(assignment, self.client.clone(), self.lease());
            let work = (self.handler)(job.clone());
            self.held.insert(lease.clone(), self.jobs.spawn(attempt::run(job, work)));
            self.fresh.push(lease);
            self.acknowledge_at.get_or_insert(Instant::now() + ACKNOWLEDGE);
        }
    }

    fn ended(&mut self, ended: Result<Result<wire::AttemptOutcome, String>, JoinError>) {
        match ended {
            Ok(Ok(outcome)) if self.held.contains_key(&outcome.lease) => self.ready.push(outcome),
            Ok(Err(lost)) => drop(self.held.remove(&lost)),
            Err(error) if error.is_panic() => {
                let lease = self.held.iter().find(|(_, running)| running.id() == error.id());
                let lease = lease.map(|(lease, _)| lease.clone());
                self.ready.extend(
                    lease.map(|lease| {
                        failed(lease, "the handler panicked", "panic", wire::RetryAdvice::Policy)
                    }),
                );
            }
            // Stopped from here, because its lease is gone.
            _ => {}
        }
    }

    /// Sends what is ready, and asks for as many jobs as there will be room for.
    fn report(&mut self) {
        if self.ready.is_empty() || self.report.is_some() {
            return;
        }
        let mut bytes = 0;
        let fits = self.ready.iter().take_while(|outcome| {
            bytes += size(outcome);
            bytes <= REPORT_BYTES
        });
        let most = if self.one_by_one > 0 { 1 } else { REPORT };
        let count = fits.count().clamp(1, most).min(self.ready.len());
        self.one_by_one = self.one_by_one.saturating_sub(1);
        let outcomes: Vec<wire::AttemptOutcome> = self.ready.drain(..count).collect();
        let asked = if self.stop_by.is_none() { self.free() } else { 0 };
        let claim = self.stop_by.is_none().then(|| self.request(asked + outcomes.len(), 0));
        self.asked += asked;
        let request = wire::CompleteRequest { outcomes: outcomes.clone(), claim };
        let (client, patience) = (self.client.clone(), self.lease());
        let answer = Box::pin(async move { client.complete(&request, patience).await });
        self.report = Some(Report { outcomes, asked, answer });
    }

    fn reported(&mut self, answer: Result<wire::CompleteAnswer, ClientError>) -> Result<(), ClientError> {
        let Some(Report { outcomes, asked, .. }) = self.report.take() else { return Ok(()) };
        self.asked -= asked;
        match answer {
            Ok(answer) => {
                self.times = answer.times;
                for (outcome, result) in outcomes.into_iter().zip(answer.results) {
                    // Nothing can be said of some: they are reported again, until a heartbeat says that they are lost.
                    match result.status {
                        429 | 500.. if self.held.contains_key(&outcome.lease) => self.ready.push(outcome),
                        _ => drop(self.held.remove(&outcome.lease)),
                    }
                }
                self.start(answer.jobs);
                Ok(())
            }
            // The server could not be reached for the length of a lease, or the attempt is over.
            Err(error) if error.is_transient() || error.is_stale() || error.is_outcome_conflict() => {
                outcomes.iter().for_each(|outcome| drop(self.held.remove(&outcome.lease)));
                Ok(())
            }
            Err(ClientError::Refused { status: 400 | 413 | 422, code, detail, .. }) => {
                self.unreportable(outcomes, &code, &detail);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The server cannot take an outcome as it is: that fails its attempt, not this worker.
    fn unreportable(&mut self, mut outcomes: Vec<wire::AttemptOutcome>, code: &str, detail: &str) {
        if outcomes.len() > 1 {
            self.one_by_one = outcomes.len();
            outcomes.append(&mut self.ready);
            self.ready = outcomes;
            return;
        }
        for outcome in outcomes {
            match outcome.complete {
                Some(_) => {
                    let text = format!("the server refused the outcome: {detail}");
                    self.ready.insert(0, failed(outcome.lease, &text, code, wire::RetryAdvice::Never));
                }
                None => drop(self.held.remove(&outcome.lease)),
            }
        }
    }

    /// Every now and then for all that is held; after a moment for what is new.
    fn send_heartbeat(&mut self) {
        let now = Instant::now();
        if self.beat.is_some() {
            return;
        }
        let mut leases: Vec<String> = if self.beat_at <= now {
            self.beat_at = now + Duration::from_millis(self.times.heartbeat_ms).max(SHORTEST_BEAT);
            self.held.keys().cloned().collect()
        } else if self.acknowledge_at.is_some_and(|at| at <= now) {
            std::mem::take(&mut self.fresh)
        } else {
            return;
        };
        self.fresh.clear();
        self.acknowledge_at = None;
        leases.retain(|lease| self.held.contains_key(lease));
        if !leases.is_empty() {
            let (client, patience) = (self.client.clone(), self.lease() / 2);
            self.beat = Some(Box::pin(async move { client.heartbeat(leases, patience).await }));
        }
    }

    fn beaten(&mut self, answer: Result<wire::HeartbeatAnswer, ClientError>) {
        self.beat = None;
        let Ok(answer) = answer else {
            // An assignment must be acknowledged soon.
            self.beat_at = self.beat_at.min(Instant::now() + AGAIN);
            return;
        };
        self.times = answer.times;
        for wire::LeaseState { lease, state } in answer.leases {
            // What is being reported is for that answer to say.
            let reporting = |report: &Report| report.outcomes.iter().any(|outcome| outcome.lease == lease);
            if state == Beat::Held || self.report.as_ref().is_some_and(reporting) {
                continue;
            }
            self.ready.retain(|outcome| outcome.lease != lease);
            if let Some(running) = self.held.remove(&lease) {
                running.abort();
            }
        }
    }

    fn stop(&mut self) {
        self.stop_by = Some(Instant::now() + self.drain);
        // The server gives back what it was about to answer with.
        if let Some((limit, _)) = self.claim.take() {
            self.asked -= limit;
        }
    }

    /// The time to drain is up.
    async fn give_back(mut self) -> Result<(), ClientError> {
        self.jobs.shutdown().await;
        let leases: Vec<String> = self.held.into_keys().collect();
        self.client.release(leases, GIVE_BACK).await
    }
}

async fn answer<T>(asked: Option<&mut Answer<T>>) -> Result<T, ClientError> {
    match asked {
        Some(answer) => answer.await,
        None => std::future::pending().await,
    }
}

fn failed(lease: String, error: &str, code: &str, retry: wire::RetryAdvice) -> wire::AttemptOutcome {
    let (error, code) = (error.to_owned(), Some(code.to_owned()));
    let fail = wire::FailedAttempt { error, code, stack: None, retry, after_ms: None };
    wire::AttemptOutcome { lease, complete: None, fail: Some(fail) }
}

fn size(outcome: &wire::AttemptOutcome) -> usize {
    let emits = |done: &wire::Completed| -> usize {
        done.emits.iter().map(|emit| emit.name.len() + emit.payload.get().len()).sum()
    };
    let done = outcome.complete.as_ref().map_or(0, |done| done.result.get().len() + emits(done));
    outcome.lease.len() + done + outcome.fail.as_ref().map_or(0, |failed| failed.error.len())
}
