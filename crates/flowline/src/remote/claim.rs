//! Claiming: jobs are leased under the worker's name, loaded with all that an attempt needs, and handed out.

use flowline_core::ids::{check_name, step_id};
use flowline_core::{Time, limits};
use flowline_store::row::StateScope;
use flowline_store::{Claim, Extend, JobKey, LeasedJob, Store, StoreError};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lease::{Lease, holder};
use super::room::Look;
use super::{ACKNOWLEDGE, Assignment, CLAIM, LONGEST_WAIT, REMOTE, Remote, WorkRequest, locked};
use crate::drive::{Prepared, prepare};
use crate::engine::EngineError;
use crate::step::{StepError, idempotency_key};
use crate::trace::Trace;

/// Inputs that one claim hands out, in bytes; jobs beyond that are given back, but for the first.
const INPUT_BYTES: usize = 4 * limits::JOIN_BYTES;
/// Queues that one worker may serve.
const QUEUES: usize = 100;

impl Remote {
    /// Leases jobs to a worker: those that are there, at once; else it waits for the first. None where the time is up, or
    /// this instance stops meanwhile. Who drops the future takes nothing: what was leased meanwhile is given back.
    pub async fn claim(&self, mut request: WorkRequest) -> Result<Vec<Assignment>, EngineError> {
        request.check()?;
        request.queues.sort();
        request.queues.dedup();
        if self.engine.shared.remote.room.is_closed() {
            return Err(EngineError::Stopped);
        }
        let look = || self.look(request.clone());
        if request.wait.is_zero() {
            return Ok(look().await?.found);
        }
        let deadline = Instant::now() + request.wait.min(LONGEST_WAIT);
        let queues = request.queues.iter().map(|queue| queue.as_str().into()).collect();
        let place = (self.engine.tenant().clone(), queues);
        let shared = &self.engine.shared;
        shared.remote.room.wait(&*shared.store, place, deadline, look).await
    }

    /// One look into the store, to its end even if nobody waits for it any more.
    async fn look(&self, request: WorkRequest) -> Result<Look<Assignment>, EngineError> {
        let remote = self.clone();
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            if let Err(Ok(unheard)) = tell.send(remote.take(&request).await) {
                let leases: Vec<String> = unheard.found.into_iter().map(|job| job.lease).collect();
                // Where it fails they run out by themselves.
                let _ = remote.release(&leases).await;
            }
        });
        told.await.map_err(|_| EngineError::Stopped)?
    }

    async fn take(&self, request: &WorkRequest) -> Result<Look<Assignment>, EngineError> {
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
                free: request.queues.iter().map(|queue| (queue.as_str().into(), limit)).collect(),
                free_elsewhere: 0,
                tokens,
                ttl: ACKNOWLEDGE.min(shared.config.lease),
                worker: holder(&request.worker, &shared.config.instance),
            })
            .await?;
        let due_in = claimed.next_due.map(|due| due.since(claimed.now));
        if claimed.jobs.is_empty() {
            return Ok(Look { found: Vec::new(), due_in });
        }
        for job in &claimed.jobs {
            shared.meters.queue_wait.observe(claimed.now.since(job.due));
        }
        let found = self.assign(request, claimed.jobs, claimed.now).await?;
        Ok(Look { found, due_in })
    }

    async fn assign(
        &self,
        request: &WorkRequest,
        jobs: Vec<LeasedJob>,
        now: Time,
    ) -> Result<Vec<Assignment>, EngineError> {
        let shared = &self.engine.shared;
        let expires = jobs.first().map_or(now, |job| job.expires);
        let (prepared, failed) = prepare(&*shared.store, &shared.plans, jobs).await;
        let mut back: Vec<Extend> = failed.into_iter().map(given_back).collect();
        let (mut found, mut bytes) = (Vec::with_capacity(prepared.len()), 0);
        for prepared in prepared {
            bytes += prepared.launch.input.get().len();
            if bytes > INPUT_BYTES && !found.is_empty() {
                let launch = prepared.launch;
                back.push(Extend { run: launch.run, key: JobKey::Step(launch.step), token: launch.token });
                continue;
            }
            let too_large = prepared.launch.input.get().len() > limits::JOIN_BYTES;
            let mut job = self.assignment(request, prepared, now, expires);
            if too_large {
                self.refuse_input(job).await;
                continue;
            }
            if request.with_state {
                self.add_state(&mut job).await?;
            }
            found.push(job);
        }
        if !back.is_empty() {
            shared.store.release(back).await?;
        }
        Ok(found)
    }

    fn assignment(&self, request: &WorkRequest, prepared: Prepared, now: Time, expires: Time) -> Assignment {
        let shared = &self.engine.shared;
        let Prepared { launch, delayed, .. } = prepared;
        shared.remote.keep_plan(&launch.run, &launch.plan, &launch.trace);
        let planned = launch.plan.step(launch.step);
        let timeout = launch.plan.step_definition(launch.step).timeout;
        let deadline = timeout.map(|timeout| now + timeout);
        let lease = Lease {
            run: launch.run.run.clone(),
            step: launch.step,
            attempt: launch.attempt,
            token: launch.token,
            claimed: now,
            deadline,
            delayed,
            worker: request.worker.as_str().into(),
            instance: shared.config.instance.clone(),
        };
        let run_id = launch.run.run;
        let step_id = step_id(&run_id, &planned.name, launch.attempt);
        Assignment {
            lease: lease.encode(),
            traceparent: Trace::of(&run_id, launch.trace.as_deref()).traceparent(&step_id),
            idempotency_key: idempotency_key(&run_id, &planned.name, launch.transition),
            run_id,
            flow_name: launch.plan.flow.clone(),
            tenant: launch.run.tenant,
            step_name: planned.name.clone(),
            step_id,
            attempt: launch.attempt,
            queue: planned.queue.clone(),
            expires,
            deadline,
            timeout_ms: timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            state: None,
            state_omitted: false,
            input: launch.input,
        }
    }

    /// No worker can be given an input over the limit: the attempt fails.
    async fn refuse_input(&self, job: Assignment) {
        let too_large = job.input.within("the step's input", limits::JOIN_BYTES);
        if let Err(error) = too_large {
            let outcome = Err(StepError::fatal(error).code("too_large"));
            // Where this fails the lease runs out, and the next attempt fails the same way.
            let _ = self.complete(vec![super::Ending { lease: job.lease, outcome, emits: Vec::new() }]).await;
        }
    }

    async fn add_state(&self, job: &mut Assignment) -> Result<(), StoreError> {
        let store: &dyn Store = &*self.engine.shared.store;
        let values = store.states(&self.engine.key(&job.run_id), StateScope::Run).await?;
        let bytes: usize = values.iter().map(|(key, value)| key.len() + value.get().len() + 4).sum();
        job.state_omitted = bytes > limits::PAYLOAD_BYTES;
        job.state = (!job.state_omitted).then(|| values.into_iter().collect());
        Ok(())
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
            return invalid(format!("a worker serves 1 to {QUEUES} queues; this one {}", self.queues.len()));
        }
        match self.queues.iter().find_map(|queue| check_name("queue", queue).err()) {
            Some(error) => invalid(error.to_string()),
            None => Ok(()),
        }
    }
}

fn given_back(job: LeasedJob) -> Extend {
    Extend { run: job.run, key: job.key, token: job.token }
}
