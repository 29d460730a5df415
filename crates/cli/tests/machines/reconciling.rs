//! Reconciliation by the engine itself, every so often.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flowline::core::RunKey;
use flowline::core::definition::{Format, read};
use flowline::reconcile::{Mode, Reconciling};
use flowline::store::row::Repair;
use flowline::store::{JobKey, Store};
use flowline::verify::verify;
use flowline::{Config, Engine};
use serde_json::json;

use crate::machines::site::{Kind, PATIENCE, Site};

const EVERY: Duration = Duration::from_secs(2);
const FLOW: &str = "flow: parcel\nsteps:\n  pack: { worker: depot }\n";

async fn engine(store: &Arc<dyn Store>, mode: Mode) -> Engine {
    let definition = read("parcel.yaml", FLOW, Format::Yaml).unwrap().definition;
    let config = Config { reconcile: Some(Reconciling { mode, every: EVERY }), ..Config::default() };
    Engine::on(store.clone()).config(config).definition(definition, None).start().await.unwrap()
}

/// Takes the job of the run's only step away, as no commit would.
async fn damage(store: &dyn Store, run: &RunKey) {
    let loaded = store.load(std::slice::from_ref(run)).await.unwrap().pop().flatten();
    let (version, remove) = (loaded.expect("it is there").row.version, vec![JobKey::Step(0)]);
    store.repair(Repair::Jobs { run: run.clone(), version, add: Vec::new(), remove }).await.unwrap();
}

async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

pub fn a_damaged_run_is_reported_by_the_next_pass_and_mended_where_that_is_asked_for(kind: Kind) {
    let site = Site::bare(kind);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = site.open().await;
        let reporting = engine(&store, Mode::Report).await;
        let started = reporting.run_named("parcel", json!({}).into()).await.unwrap().await.unwrap();
        let run = started.key();
        let meters = &reporting.meters().reconciled;
        let passes = || meters.passes.load(Ordering::Relaxed);
        let found = || meters.found.load(Ordering::Relaxed);
        until("a pass is over", async || passes() > 0).await;
        assert_eq!(found(), 0, "nothing is wrong yet");
        let job = store.jobs(run).await.unwrap();
        damage(&*store, run).await;
        let before = passes();
        until("the damage is found", async || found() > 0).await;
        // One pass may have been under way already.
        assert!(passes() <= before + 2, "{} passes for it", passes() - before);
        assert_eq!(store.jobs(run).await.unwrap(), [], "a report mends nothing");
        assert_eq!(meters.repaired.load(Ordering::Relaxed), 0);
        reporting.stop().await;

        let mending = engine(&store, Mode::Repair).await;
        until("it is mended", async || store.jobs(run).await.unwrap().len() == 1).await;
        let mended = store.jobs(run).await.unwrap();
        assert_eq!((mended[0].key, mended[0].attempt), (job[0].key, job[0].attempt));
        until("the pass is over", async || mending.meters().reconciled.repaired.load(Ordering::Relaxed) > 0)
            .await;
        assert_eq!(verify(&*store, mending.plans(), None).await.unwrap().violations, []);
        mending.stop().await;
    });
}
