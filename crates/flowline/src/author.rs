//! What the author of a definition was allowed.
//!
//! A token that's bound to flows or queues can register definitions of its flows, but what these do is no way around the
//! binding: the flows and machines they call and the queues they use are checked when they're registered. What only a run
//! knows, such as the flow of a run that an event is sent to, is checked when a step runs, against the binding that is stored
//! with the definition. A definition without a stored binding has no limits: an unbound token registered it, or the operator
//! loaded it from a file.

use flowline_core::definition::{DEFAULT_QUEUE, Definition, Receiver, Runner, START_QUEUE, StepDefinition};
use flowline_core::{Binding, Json, Plan, Tenant};
use flowline_store::{NewDocument, StoreError};

use crate::engine::{Engine, EngineError};

/// Bindings of authors, by the hash of the definition.
fn collection(tenant: &Tenant) -> String {
    format!("authors:{tenant}")
}

impl Engine {
    /// What the author of a stored definition was allowed.
    pub(crate) async fn author_of(&self, hash: &str) -> Result<Binding, StoreError> {
        let found = self.store().document(&collection(self.tenant()), hash).await?;
        let damaged = |error| StoreError::Damaged(format!("the author of definition {hash}: {error}"));
        found.map_or(Ok(Binding::default()), |found| found.body.to().map_err(damaged))
    }

    /// Stores what the author of a definition is allowed, before it can be used. Content that has no limits keeps none.
    pub(crate) async fn set_author(&self, plan: &Plan, author: &Binding) -> Result<(), EngineError> {
        check(&plan.definition, author)?;
        let (store, collection) = (self.store(), collection(self.tenant()));
        let known = store.definition(self.tenant(), &plan.hash).await?.is_some();
        if known && store.document(&collection, &plan.hash).await?.is_none() {
            return Ok(());
        }
        let body = Json::of(author).map_err(|error| StoreError::Invalid(error.to_string()))?;
        store.put_document(NewDocument::new(&collection, &plan.hash, body, None)).await?;
        Ok(())
    }

    /// From now on, a stored definition has no limits. One with new content can have some too: those of a bound author whose
    /// registration stored them and then failed.
    pub(crate) async fn forget_author(&self, plan: &Plan) -> Result<(), StoreError> {
        self.store().delete_document(&collection(self.tenant()), &plan.hash).await.map(drop)
    }
}

/// Refuses what this author may not have a definition do.
fn check(definition: &Definition, author: &Binding) -> Result<(), EngineError> {
    let wrong = |step: &StepDefinition| {
        let problem = beyond(step, author)?;
        Some(EngineError::BeyondBinding(format!("step {:?} {problem}", step.name)))
    };
    definition.steps.iter().find_map(wrong).map_or(Ok(()), Err)
}

fn beyond(step: &StepDefinition, author: &Binding) -> Option<String> {
    let flow = match &step.runner {
        Runner::Command(_) | Runner::Function(_) if !author.is_unbound() => {
            let what = if matches!(step.runner, Runner::Command(_)) { "a command" } else { "a function" };
            return Some(format!(
                "runs {what} in the server's own process or beside it, which no binding limits; register it with a token that isn't bound"
            ));
        }
        Runner::Start(start) => Some(&start.flow),
        Runner::Send(send) => match &send.to {
            Receiver::Machine { machine, .. } => Some(machine),
            Receiver::Run { .. } => None,
        },
        _ => None,
    };
    if let Some(flow) = flow.filter(|flow| !author.allows_flow(flow)) {
        return Some(format!(
            "calls {flow:?}, which the token isn't bound to; bind the token to it too (--bind-flow {flow}), or use one that isn't bound"
        ));
    }
    let own =
        !matches!(step.runner, Runner::Worker(_)) && [DEFAULT_QUEUE, START_QUEUE].contains(&&*step.queue);
    if own || author.allows_queue(&step.queue) {
        return None;
    }
    let queue = &step.queue;
    Some(format!(
        "uses queue {queue:?}, which the token isn't bound to; bind the token to it too (--bind-queue {queue}), or use one that isn't bound"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flowline_core::definition::{Format, read};
    use flowline_store::{Clock, MemoryStore};

    use super::*;

    #[tokio::test]
    async fn limits_that_a_failed_registration_left_behind_do_not_bind_an_unbound_author() {
        let engine = Engine::on(Arc::new(MemoryStore::new(Clock::system()))).start().await.unwrap();
        let bound = |name: &str| Some(Arc::from([name.to_owned()]));
        let bound = Binding { flows: bound("greet"), queues: bound("depot") };
        let text = "flow: greet\nsteps:\n  wait: { worker: depot }\n";
        let definition = read("greet.yaml", text, Format::Yaml).unwrap().definition;
        let plan = Arc::new(Plan::build(definition.clone()).unwrap());
        engine.set_author(&plan, &bound).await.unwrap();
        assert_eq!(engine.author_of(&plan.hash).await.unwrap(), bound);
        engine.register_at_start(definition, None).await.unwrap();
        assert!(engine.author_of(&plan.hash).await.unwrap().is_unbound());
        engine.stop().await;
    }
}
