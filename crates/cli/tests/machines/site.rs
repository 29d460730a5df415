//! A store of a test's own, and the instances that serve it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flowline::store::Store;
use serde_json::{Value, json};

use crate::kit::place::Here;
use crate::kit::served::{Reply, Served};

/// Far beyond what it takes: a machine may be busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// Short, so that what a dead instance held is taken up soon.
const LEASE: &str = "2s";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Redis,
    Postgres,
}

pub struct Site {
    pub here: Here,
    pub kind: Kind,
    /// The store's URL.
    pub store: String,
    instances: Vec<Instance>,
}

struct Instance {
    address: SocketAddr,
    served: Mutex<Option<Served>>,
}

impl Kind {
    /// A store of its own, in this folder or on the server that `cargo xtask test` starts, or that was given.
    fn url(self) -> String {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let (variable, name) = match self {
            Kind::Sqlite => return "sqlite:machines.db".to_owned(),
            Kind::Redis => ("FLOWLINE_TEST_REDIS_URL", "prefix"),
            Kind::Postgres => ("FLOWLINE_TEST_POSTGRES_URL", "schema"),
        };
        let server = std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set; run the tests with `cargo xtask test`, or start servers with `cargo xtask services start`")
        });
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let joint = if server.contains('?') { '&' } else { '?' };
        format!("{server}{joint}{name}=machines_{}_{number}", std::process::id())
    }
}

impl Site {
    /// A store without an instance.
    pub fn bare(kind: Kind) -> Site {
        Site { here: Here::new(), kind, store: kind.url(), instances: Vec::new() }
    }

    /// A store with so many instances, where it takes more than one.
    pub fn new(kind: Kind, instances: usize) -> Site {
        let mut site = Site::bare(kind);
        let instances = if kind == Kind::Sqlite { 1 } else { instances };
        for _ in 0..instances {
            let served = site.serve("127.0.0.1:0");
            site.instances.push(Instance { address: served.address, served: Mutex::new(Some(served)) });
        }
        site
    }

    fn serve(&self, address: &str) -> Served {
        let arguments =
            ["serve", "--listen", address, "--store", &self.store, "--allow-commands", "--lease", LEASE];
        let served = Served::command(self.here.folder.path(), &[&arguments[..], &["--drain", "1s"]].concat());
        served.unwrap_or_else(|said| panic!("the server did not start: {said}"))
    }

    pub fn instances(&self) -> usize {
        self.instances.len()
    }

    fn lock(&self, instance: usize) -> MutexGuard<'_, Option<Served>> {
        self.instances[instance].served.lock().unwrap()
    }

    /// `kill -9`.
    pub fn kill(&self, instance: usize) {
        drop(self.lock(instance).take());
    }

    /// Starts one that was killed or stopped, at its old address.
    pub fn start(&self, instance: usize) {
        let mut served = self.lock(instance);
        *served = Some(self.serve(&self.instances[instance].address.to_string()));
    }

    /// The addresses of all instances, for the command line.
    pub fn servers(&self) -> String {
        let urls: Vec<String> = self.instances.iter().map(|of| format!("http://{}", of.address)).collect();
        urls.join(",")
    }

    pub fn register(&self, definition: &str) {
        self.lock(0).as_ref().unwrap().register(definition);
    }

    pub fn get(&self, path: &str) -> Value {
        self.get_at(0, path)
    }

    pub fn get_at(&self, instance: usize, path: &str) -> Value {
        let reply = self.lock(instance).as_ref().unwrap().get(path);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.json()
    }

    pub fn post(&self, path: &str, body: Value) -> Reply {
        self.post_at(0, path, body)
    }

    pub fn post_at(&self, instance: usize, path: &str, body: Value) -> Reply {
        self.lock(instance).as_ref().unwrap().post(path, &body)
    }

    pub fn begin(&self, machine: &str) -> String {
        let reply = self.post(&format!("/v1/flows/{machine}/runs"), json!({ "input": {} }));
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.json()["runId"].as_str().unwrap().to_owned()
    }

    /// Has a run take an event; its id.
    pub fn send(&self, run: &str, body: Value) -> String {
        let reply = self.post(&format!("/v1/runs/{run}/events"), body);
        assert_eq!(reply.status, 202, "{reply:?}");
        reply.json()["eventId"].as_str().unwrap().to_owned()
    }

    pub fn receipt(&self, run: &str, event: &str) -> Value {
        self.get(&format!("/v1/runs/{run}/receipts/{event}"))
    }

    /// The receipt of an event that the machine is done with.
    pub fn done(&self, run: &str, event: &str) -> Value {
        let receipt = self.get(&format!("/v1/runs/{run}/receipts/{event}?wait=60s"));
        assert!(receipt["completedAt"].is_string(), "not done in a minute: {receipt}");
        receipt
    }

    /// What the log of a run says of one type of event.
    pub fn log(&self, run: &str, kind: &str) -> Vec<Value> {
        self.events(run, kind).into_iter().map(|mut event| event["data"].take()).collect()
    }

    /// The events of one type in the log of a run.
    pub fn events(&self, run: &str, kind: &str) -> Vec<Value> {
        let mut after = 0;
        let mut found = Vec::new();
        loop {
            let page = self.get(&format!("/v1/runs/{run}/events?limit=1000&type={kind}&after={after}"));
            found.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next"].as_u64() {
                Some(next) => after = next,
                None => return found,
            }
        }
    }

    /// Opens the store itself.
    pub async fn open(&self) -> Arc<dyn Store> {
        match self.kind {
            Kind::Sqlite => {
                let path = self.here.path("machines.db");
                flowline_sqlite::SqliteStore::open(&path, flowline_sqlite::Options::default()).unwrap()
            }
            Kind::Redis => {
                flowline_redis::RedisStore::open(&self.store, flowline_redis::IfMissing::Make).await.unwrap()
            }
            Kind::Postgres => {
                let made = flowline_postgres::IfMissing::Make;
                flowline_postgres::PostgresStore::open(&self.store, made).await.unwrap()
            }
        }
    }
}
