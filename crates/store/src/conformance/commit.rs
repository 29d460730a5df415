//! One commit: all or nothing, on the version that it was decided on.

use super::{Fixture, given};

pub async fn a_new_run_gets_version_one_and_its_events_from_one(f: Fixture) {
    let run = given::run("r");
    f.define(&run).await;
    let now = f.now().await;
    let committed = f.commit(given::start(&run)).await;
    assert_eq!((committed.version, committed.first_seq), (1, 1));
    assert!(committed.ts >= now);
    assert_eq!(f.log(&run).await.iter().map(|event| event.seq).collect::<Vec<_>>(), [1]);
}
