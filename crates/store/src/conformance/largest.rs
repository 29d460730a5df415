//! Payloads of the largest size that an engine may be told to take.

use flowline_core::event::PayloadSlot;
use flowline_core::limits::Limits;
use flowline_core::{EventType, Json, NewEvent};

use super::{Fixture, given};
use crate::{Commit, StateOwner, StateSpace};

/// Not among the cases of the suite: it keeps a server too busy for tests beside it. An adapter calls it by itself.
pub async fn payloads_of_the_largest_size_are_kept(f: Fixture) {
    let run = f.started("r", vec![]).await;
    let text = |bytes: usize| Json::composed(format!("\"{}\"", "x".repeat(bytes - 2)));
    let (payload, joined) = (text(Limits::MOST.payload), text(Limits::MOST.join));
    let emit = NewEvent::run(EventType::Emit, Some(payload.clone())).at(PayloadSlot::Emit(0));
    let result = NewEvent::run(EventType::StepCompleted, Some(payload.clone())).at(PayloadSlot::Result(0));
    f.commit(Commit { events: vec![emit, result], ..given::next(&run, 1) }).await;
    let end = NewEvent::run(EventType::Log, Some(joined.clone()));
    f.commit(Commit { events: vec![end], ..given::next(&run, 2) }).await;
    let found =
        f.store.payloads_of(&run, &[PayloadSlot::Result(0), PayloadSlot::Emit(0)]).await.expect("finds");
    assert!(found == [Some(payload.clone()), Some(payload.clone())]);
    let log = f.log(&run).await;
    assert!(log.last().expect("events").data.as_ref() == Some(&joined));
    let space = StateSpace::new(&run.tenant, StateOwner::Tenant);
    f.set(&space, "large", Some(payload.clone())).await;
    assert!(f.store.state(&space, "large").await.expect("reads").expect("is there").value == payload);
}
