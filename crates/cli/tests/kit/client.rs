//! A client of the runs: asks, and remembers what it asked and what it was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use flowline::core::{Json, RunId, RunKey, Tenant, definition};
use flowline::store::Store;
use flowline::{Config, Engine, EngineError, InstanceRole};
use flowline_check::{ClientReply, ClientRequest, History};
use flowline_postgres::PostgresStore;
use flowline_redis::RedisStore;
use tokio::runtime::{Builder, Runtime};

use crate::kit::place::Here;
use crate::kit::server::Kind;

/// Who has no answer by then has none.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Client {
    runtime: Runtime,
    engine: Engine,
    store: Arc<dyn Store>,
    pub history: History,
}

impl Client {
    pub fn new(kind: Kind, url: &str) -> Client {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (store, engine) = runtime.block_on(async {
            let store: Arc<dyn Store> = match kind {
                Kind::Redis => RedisStore::open(url, flowline_redis::IfMissing::Make).await.unwrap(),
                Kind::Postgres => PostgresStore::open(url, flowline_postgres::IfMissing::Make).await.unwrap(),
            };
            let config = Config { role: InstanceRole::Operate, ..Config::default() };
            let engine = Engine::on(store.clone()).config(config).start().await.unwrap();
            (store, engine)
        });
        Client { runtime, engine, store, history: History::default() }
    }

    /// Stores a definition, whose commands run where it stands.
    pub fn learn(&self, here: &Here, file: &str) {
        let text = std::fs::read_to_string(here.path(file)).unwrap();
        let definition = definition::read(file, &text, definition::Format::Yaml).unwrap().definition;
        let origin = here.folder.path().to_str().unwrap().to_owned();
        self.runtime.block_on(self.engine.register(definition, Some(origin))).unwrap();
    }

    /// Asks the store.
    pub fn ask<T>(&self, question: impl AsyncFnOnce(&dyn Store) -> T) -> T {
        self.runtime.block_on(question(&*self.store))
    }

    /// Starts runs of `hit` until it is told to stop, each time when one of the last so many has ended.
    pub fn keep_busy(&mut self, name: &str, window: usize, done: &AtomicBool) {
        let mut open: Vec<RunKey> = Vec::new();
        let mut last = 0;
        while !done.load(Ordering::Relaxed) {
            open.retain(|run| !self.has_ended(run));
            if open.len() >= window {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            if let Some(run) = self.start("hit", &format!("{name}-{last}")) {
                self.approve(&run.run);
                open.push(run);
            }
            last += 1;
        }
    }

    /// Asks for a run under a key. What is not acknowledged may or may not be there.
    pub fn start(&mut self, flow: &str, key: &str) -> Option<RunKey> {
        let start = async {
            let input = Json::of(&key).unwrap();
            self.engine.run_named(flow, input).await?.idempotency_key(key).await
        };
        let told = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, start).await });
        let (run, outcome) = match told {
            Ok(Ok(handle)) => (Some(handle.key().clone()), ClientReply::Acknowledged),
            Ok(Err(error)) => (None, outcome(&error)),
            Err(_) => (None, ClientReply::Unknown),
        };
        let act = ClientRequest::Start {
            run: run.as_ref().map(|run| run.run.clone()),
            flow: flow.into(),
            key: Some(key.to_owned()),
            body: Some(format!("{key:?}")),
        };
        self.history.push(&Tenant::default(), act, outcome);
        run
    }

    /// Sends the event that a run waits for in the end.
    pub fn approve(&mut self, run: &RunId) {
        let key = RunKey::new(Tenant::default(), run.clone());
        let send = self.engine.send(&key, "approved", Json::null());
        let told = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, send).await });
        let outcome = match told {
            Ok(Ok(_)) => ClientReply::Acknowledged,
            Ok(Err(error)) => outcome(&error),
            Err(_) => ClientReply::Unknown,
        };
        let act = ClientRequest::Send { run: run.clone(), name: "approved".into(), event_id: None };
        self.history.push(&Tenant::default(), act, outcome);
    }

    /// Whether a run has ended, as far as the store says.
    pub fn has_ended(&self, run: &RunKey) -> bool {
        let row = self.runtime.block_on(self.engine.row(run));
        row.is_ok_and(|row| row.status.is_terminal())
    }
}

fn outcome(error: &EngineError) -> ClientReply {
    match error {
        EngineError::Store(error) if error.nothing_written() => ClientReply::Refused,
        EngineError::Store(_) | EngineError::Stopped => ClientReply::Unknown,
        _ => ClientReply::Refused,
    }
}
