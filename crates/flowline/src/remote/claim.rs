//! Claims: leases jobs to a worker, loads what their attempts need, and hands them out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flowline_core::Time;
use flowline_core::ids::check_name;
use flowline_core::limits::Limits;
use flowline_store::{Claim, Extend, LeasedJob, Store, StoreError};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lease::{Lease, holder};
use super::room::WorkFound;
use super::seats::{HandedJobs, WorkerSeat};
use super::{
    ACKNOWLEDGE, Assignment, AttemptEnding, CLAIM, LONGEST_WAIT, REMOTE, Remote, WorkRequest, locked,
};
use crate::attempt::{FirstLine, Launch};
use crate::drive::prepare;
use crate::engine::EngineError;
use crate::ledger::HandedOff;
use crate::operate::Applied;
use crate::seal::Sealer;
use crate::step::StepError;

/// Inputs that one claim hands out, in bytes. Jobs beyond that are given back, except the first.
const INPUT_BYTES: usize = Limits::MOST.join;
/// Key-value state is left out of what would be larger than this with it, in bytes.
const WITH_STATE_BYTES: usize = 16 << 20;
/// How long a report may take to get the jobs that its commits trigger.
const PROMPT: Duration = Duration::from_millis(500);
/// Queues that one worker may serve.
const QUEUES: usize = 100;

impl Remote {
    /// Leases jobs to a worker; if there are none, waits for the first. Returns none if the time is up or
    /// this instance stops. If the future is dropped, what was leased is given back.
    pub async fn claim(&self, request: WorkRequest) -> Result<Vec<Assignment>, EngineError> {
        request.check()?;
        if self.engine.shared.remote.room.is_closed() {
            return Err(EngineError::Stopped);
        }
        let request = Arc::new(request);
        if request.wait.is_zero() {
            return Ok(self.look(request).await?.found);
        }
        let deadline = Instant::now() + request.wait.min(LONGEST_WAIT);
        let shared = &self.engine.shared;
        let place = (self.engine.tenant().clone(), queues_of(&request));
        let (seat, mut handed) = self.sit(&request);
        let look = || async {
            seat.withhold().await;
            let looked = self.look(request.clone()).await;
            if looked.as_ref().is_ok_and(|look| look.found.is_empty()) {
                seat.offer();
            }
            looked
        };
        tokio::select! {
            biased;
            () = handed.first() => {}
            found = shared.remote.room.wait(&*shared.store, place.clone(), deadline, look) => return found,
        }
        shared.remote.room.found(&place);
        drop(seat);
        self.receive(request, handed.all().await).await
    }

    /// Reports how attempts ended, as [`Remote::complete`] does, and has the commits hand the jobs that follow to the worker
    /// that reports. If there are none, looks for others. Jobs that can't be had now are for the next claim.
    pub async fn complete_and_claim(
        &self,
        endings: Vec<AttemptEnding>,
        mut request: WorkRequest,
    ) -> (Vec<Result<Applied, EngineError>>, Vec<Assignment>) {
        request.wait = Duration::ZERO;
        let mut reports = std::pin::pin!(self.complete(endings));
        let (seat, handed) = self.sit(&request);
        let Ok(reports) = tokio::time::timeout(PROMPT, reports.as_mut()).await else {
            // Jobs would lose their leases while they wait for these reports: they are given back.
            drop((seat, handed));
            return (reports.await, Vec::new());
        };
        drop(seat);
        // The answer will be this error alone, without jobs: those go back.
        if let [Err(_)] = reports[..] {
            return (reports, Vec::new());
        }
        let handed = handed.all().await;
        let jobs = match handed.is_empty() {
            true => self.claim(request).await,
            false => self.receive(Arc::new(request), handed).await,
        };
        (reports, jobs.unwrap_or_default())
    }

    /// Takes a seat for what the worker asks for.
    fn sit(&self, request: &WorkRequest) -> (WorkerSeat, HandedJobs) {
        let (shared, tenant) = (&self.engine.shared, self.engine.tenant());
        let room = match shared.remote.room.is_closed() {
            true => 0,
            false => request.limit.clamp(1, CLAIM),
        };
        shared.remote.seats.sit(&request.worker, tenant, &queues_of(request), room, shared.store.clone())
    }

    /// One look into the store.
    async fn look(&self, request: Arc<WorkRequest>) -> Result<WorkFound<Assignment>, EngineError> {
        let remote = self.clone();
        self.to_its_end(async move { remote.take(&request).await }).await
    }

    /// Takes over jobs that commits leased to this worker.
    async fn receive(
        &self,
        request: Arc<WorkRequest>,
        handed: Vec<HandedOff>,
    ) -> Result<Vec<Assignment>, EngineError> {
        let at = handed.iter().map(|handed| handed.at).max().unwrap_or_default();
        let expires = handed.iter().map(|handed| handed.at + handed.ttl).min().unwrap_or_default();
        let remote = self.clone();
        let received = self.to_its_end(async move {
            let (mut launches, mut unread) = (Vec::with_capacity(handed.len()), Vec::new());
            for handed in handed {
                match handed.launch() {
                    Ok(launch) => launches.push(launch),
                    Err(job) => unread.push(*job),
                }
            }
            let (read, failed) = remote.prepare(unread).await;
            launches.extend(read);
            let found = remote.assign(&request, launches, failed, at, expires).await?;
            Ok(WorkFound { found, due_in: None })
        });
        Ok(received.await?.found)
    }

    /// Finishes taking leases even if nobody waits for them anymore, and then gives them back.
    async fn to_its_end(
        &self,
        taking: impl Future<Output = Result<WorkFound<Assignment>, EngineError>> + Send + 'static,
    ) -> Result<WorkFound<Assignment>, EngineError> {
        let remote = self.clone();
        let give_back = move |unheard: Result<WorkFound<Assignment>, EngineError>| async move {
            let found = unheard.map_or_else(|_| Vec::new(), |look| look.found);
            let leases: Vec<String> = found.into_iter().map(|job| job.lease).collect();
            let _ = remote.release(&leases).await;
        };
        let (tell, told) = oneshot::channel();
        tokio::spawn({
            let give_back = give_back.clone();
            async move {
                if let Err(unheard) = tell.send(taking.await) {
                    give_back(unheard).await;
                }
            }
        });
        (&mut Awaited::new(told, give_back).told).await.map_err(|_| EngineError::Stopped)?
    }

    async fn take(&self, request: &WorkRequest) -> Result<WorkFound<Assignment>, EngineError> {
        let shared = &self.engine.shared;
        let limit = request.limit.clamp(1, CLAIM);
        let tokens = {
            let mut tokens = locked(&shared.remote.tokens);
            (0..limit).map(|_| tokens.next()).collect()
        };
        let claimed = shared
            .store
            .claim(Claim {
                tenant: Some(self.engine.tenant().clone()),
                needs: vec![REMOTE.into()],
                free: queues_of(request).iter().map(|queue| (queue.clone(), limit)).collect(),
                free_elsewhere: 0,
                tokens,
                ttl: ACKNOWLEDGE.min(shared.config.lease),
                worker: holder(&request.worker, &shared.config.instance),
            })
            .await?;
        let due_in = claimed.next_due.map(|due| due.since(claimed.now));
        if claimed.jobs.is_empty() {
            return Ok(WorkFound { found: Vec::new(), due_in });
        }
        for job in &claimed.jobs {
            shared.meters.queue_wait.observe(claimed.now.since(job.due));
        }
        let expires = claimed.jobs.first().map_or(claimed.now, |job| job.expires);
        let (launches, failed) = self.prepare(claimed.jobs).await;
        let found = self.assign(request, launches, failed, claimed.now, expires).await?;
        Ok(WorkFound { found, due_in })
    }

    async fn prepare(&self, jobs: Vec<LeasedJob>) -> (Vec<Launch>, Vec<LeasedJob>) {
        let shared = &self.engine.shared;
        let (prepared, failed) = prepare(&*shared.store, &shared.plans, jobs).await;
        (prepared.into_iter().map(|prepared| prepared.launch).collect(), failed)
    }

    /// Makes assignments of attempts. Those that could not be loaded go back.
    async fn assign(
        &self,
        request: &WorkRequest,
        launches: Vec<Launch>,
        failed: Vec<LeasedJob>,
        now: Time,
        expires: Time,
    ) -> Result<Vec<Assignment>, EngineError> {
        let shared = &self.engine.shared;
        let mut back: Vec<Extend> = failed.into_iter().map(given_back).collect();
        let sealer = shared.sealer().await?;
        let (mut found, mut bytes) = (Vec::with_capacity(launches.len()), 0);
        for launch in launches {
            bytes += launch.input.get().len();
            if bytes > INPUT_BYTES && !found.is_empty() {
                back.push(launch.attempt.lease());
                continue;
            }
            let too_large = launch.input.get().len() > shared.config.limits.join;
            let mut job = self.assignment(request, launch, sealer, (now, expires));
            if too_large {
                self.refuse_input(job).await;
                continue;
            }
            if request.with_state {
                bytes += self.add_state(&mut job, WITH_STATE_BYTES.saturating_sub(bytes)).await?;
            }
            found.push(job);
        }
        if !back.is_empty() {
            shared.store.release(back).await?;
        }
        Ok(found)
    }

    fn assignment(
        &self,
        request: &WorkRequest,
        launch: Launch,
        sealer: &Sealer,
        (now, expires): (Time, Time),
    ) -> Assignment {
        let shared = &self.engine.shared;
        let Launch { attempt, input, first_line } = launch;
        shared.remote.keep_plan(&attempt.run, (attempt.plan.clone(), attempt.trace.clone()));
        let timeout = attempt.timeout();
        let deadline = timeout.map(|timeout| now + timeout);
        let lease = Lease {
            run: attempt.run.run.clone(),
            step: attempt.step,
            attempt: attempt.number,
            token: attempt.token,
            claimed: now,
            deadline,
            delayed: first_line == FirstLine::Awaited,
            worker: request.worker.as_str().into(),
            instance: shared.config.instance.clone(),
        };
        Assignment {
            lease: lease.encode(sealer, &attempt.run.tenant),
            traceparent: attempt.traceparent(),
            idempotency_key: attempt.idempotency_key(),
            flow_name: attempt.plan.flow.clone(),
            step_name: attempt.name().clone(),
            step_id: attempt.step_id(),
            attempt: attempt.number,
            queue: attempt.queue().clone(),
            run_id: attempt.run.run,
            tenant: attempt.run.tenant,
            expires,
            deadline,
            timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            state: None,
            state_omitted: false,
            input,
        }
    }

    /// No worker can be given an input over the limit: the attempt fails.
    async fn refuse_input(&self, job: Assignment) {
        let too_large = job.input.within("the step's input", self.engine.shared.config.limits.join());
        if let Err(error) = too_large {
            let outcome = Err(StepError::fatal(error).code("too_large"));
            // Where this fails the lease runs out, and the next attempt fails the same way.
            let _ = self.complete(vec![AttemptEnding { lease: job.lease, outcome, emits: Vec::new() }]).await;
        }
    }

    /// Gives a job the state of its run if that fits into so many bytes. Says how many it has.
    async fn add_state(&self, job: &mut Assignment, most: usize) -> Result<usize, StoreError> {
        let store: &dyn Store = &*self.engine.shared.store;
        let found = crate::state::of_run(store, &self.engine.key(&job.run_id), most).await?;
        job.state_omitted = found.is_none();
        let (state, bytes) = found.unzip();
        job.state = state;
        Ok(bytes.unwrap_or(0))
    }
}

/// An answer with leases in it. Dropped before it was heard, they are given back at once; where that fails they run out
/// by themselves.
struct Awaited<T, B: FnOnce(T) -> F, F: Future<Output = ()> + Send + 'static> {
    told: oneshot::Receiver<T>,
    give_back: Option<B>,
}

impl<T, B: FnOnce(T) -> F, F: Future<Output = ()> + Send + 'static> Awaited<T, B, F> {
    fn new(told: oneshot::Receiver<T>, give_back: B) -> Awaited<T, B, F> {
        Awaited { told, give_back: Some(give_back) }
    }
}

impl<T, B: FnOnce(T) -> F, F: Future<Output = ()> + Send + 'static> Drop for Awaited<T, B, F> {
    fn drop(&mut self) {
        self.told.close();
        if let (Ok(unheard), Some(give_back)) = (self.told.try_recv(), self.give_back.take())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(give_back(unheard));
        }
    }
}

impl WorkRequest {
    /// Refuses what no worker can ask for.
    pub fn check(&self) -> Result<(), EngineError> {
        let invalid = |text: String| Err(EngineError::Invalid(text));
        if let Err(error) = check_name("worker", &self.worker) {
            return invalid(error.to_string());
        }
        if self.queues.is_empty() || self.queues.len() > QUEUES {
            return invalid(format!(
                "a worker can serve 1 to {QUEUES} queues, but this one asks for {}",
                self.queues.len()
            ));
        }
        match self.queues.iter().find_map(|queue| check_name("queue", queue).err()) {
            Some(error) => invalid(error.to_string()),
            None => Ok(()),
        }
    }
}

/// The queues that a worker serves, in order.
fn queues_of(request: &WorkRequest) -> Arc<[Arc<str>]> {
    let queues: BTreeSet<&str> = request.queues.iter().map(String::as_str).collect();
    queues.into_iter().map(Arc::from).collect()
}

fn given_back(job: LeasedJob) -> Extend {
    Extend { run: job.run, key: job.key, token: job.token }
}
