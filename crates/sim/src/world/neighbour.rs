//! A run of another tenant in the same store, with a waiting job. No instance serves that tenant, so nothing happens to it.

use flowline_core::decide::Start;
use flowline_core::definition::Priority;
use flowline_core::event::{EventType, NewEvent};
use flowline_core::{Json, RunId, RunKey, Status, Tenant};
use flowline_store::{Base, Commit, Index, JobKey, Lane, NewJob, NewRun, StoredDefinition};

use super::World;

impl World {
    pub(super) fn move_neighbour_in(&self) {
        let (Ok(tenant), Ok(run)) = (Tenant::new("neighbour"), RunId::new("theirs")) else { return };
        let plan = &self.program.versions[0].plan;
        // A machine of the user's may have no action.
        let Some(step) = plan.steps.first() else { return };
        let mut inner = self.shared.lock();
        let now = inner.store_now();
        let definition = StoredDefinition {
            tenant: tenant.clone(),
            flow: plan.flow.clone(),
            hash: plan.hash.clone(),
            body: plan.definition.canonical(),
            origin: None,
            created_at: now,
            latest: true,
        };
        inner.memory.put_definition(now, definition);
        let new = NewRun { retain: None, ..NewRun::of(plan, &Start::new(Json::null())) };
        let job = NewJob {
            key: JobKey::Step(0),
            name: step.name.clone(),
            attempt: 1,
            lane: Lane { queue: step.queue.clone(), need: step.need.clone() },
            priority: Priority::Urgent,
            due: now,
            held: false,
            handoff: None,
        };
        let start = Commit {
            events: vec![NewEvent::run(EventType::FlowStart, None)],
            add: vec![job],
            ..Commit::new(RunKey::new(tenant, run), Base::New(new), Index::of(Status::Running))
        };
        inner.memory.commit(now, vec![start]);
    }
}
