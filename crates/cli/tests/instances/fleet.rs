//! Instances that work on one store, each by a proxy of its own, and what became of the runs in the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use flowline_check::History;
use serde_json::{Value, json};

use crate::instances::proxy::Proxy;
use crate::kit::client::Client;
use crate::kit::dump::Dump;
use crate::kit::ledger;
use crate::kit::place::Here;
use crate::kit::server::Place;
use crate::kit::wait_for;

/// A diamond whose steps tell a ledger outside the store what they do.
const DIAMOND: &str = r#"
flow: diamond
steps:
  order: { command: [sh, quick.sh], returns: ordered }
  charge: { subscribes: [ordered], command: [sh, quick.sh], returns: charged }
  reserve: { subscribes: [ordered], command: [sh, quick.sh], returns: reserved }
  ship: { subscribes: [charged, reserved], command: [sh, quick.sh] }
"#;

const QUICK: &str = r#"
echo "$FLOWLINE_RUN_ID $FLOWLINE_STEP $FLOWLINE_ATTEMPT began
$FLOWLINE_RUN_ID $FLOWLINE_STEP $FLOWLINE_ATTEMPT done" >> ledger
"#;

#[derive(Debug)]
pub struct Fleet {
    pub here: Here,
    pub place: Place,
    pub instances: Vec<Instance>,
}

#[derive(Debug)]
pub struct Instance {
    pub proxy: Proxy,
    url: String,
    flags: Vec<String>,
    child: Mutex<Child>,
}

impl Fleet {
    /// An instance of `flowline work` for each list of flags, on a store that knows the flows `hit` and `diamond`. All of
    /// them work when this is done.
    pub fn new(place: Place, flags: &[&[&str]]) -> Fleet {
        let here = ledger::here();
        here.write("diamond.yaml", DIAMOND);
        here.write("quick.sh", QUICK);
        let mut fleet = Fleet { here, place, instances: Vec::new() };
        // Also makes the store's layout before the instances do.
        let client = fleet.client();
        client.learn(&fleet.here, "hit.yaml");
        client.learn(&fleet.here, "diamond.yaml");
        for (number, flags) in flags.iter().enumerate() {
            let flags: Vec<String> = flags.iter().map(|flag| flag.to_string()).collect();
            let proxy = Proxy::before(&fleet.place.address);
            let url = fleet.place.by(proxy.port);
            let child = Mutex::new(work(&fleet.here, number, &url, &flags));
            fleet.instances.push(Instance { proxy, url, flags, child });
        }
        for number in 0..flags.len() {
            wait_for("an instance works", || fleet.said("err", number).contains("working on"));
        }
        fleet
    }

    fn again(&self, instance: usize) -> Child {
        let Instance { url, flags, .. } = &self.instances[instance];
        work(&self.here, instance, url, flags)
    }

    fn child(&self, instance: usize) -> MutexGuard<'_, Child> {
        self.instances[instance].child.lock().unwrap()
    }

    /// `kill -9`, and another in its place.
    pub fn kill(&self, instance: usize) {
        let mut child = self.child(instance);
        child.kill().unwrap();
        child.wait().unwrap();
        *child = self.again(instance);
    }

    /// `kill -9`, and nobody in its place.
    pub fn crash(&self, instance: usize) {
        self.child(instance).kill().unwrap();
    }

    /// SIGSTOP, or SIGCONT.
    pub fn signal(&self, instance: usize, name: &str) {
        signal(&self.child(instance), name);
    }

    /// Which instance goes by a name that an event gives: the host and the process's id are in it.
    pub fn named(&self, name: &str) -> usize {
        let is = |number: &usize| name.contains(&format!("-{}-", self.child(*number).id()));
        (0..self.instances.len()).find(is).unwrap()
    }

    /// Starts what ended by itself again: an instance gives up where the server is away as it starts.
    pub fn revive(&self) {
        for (number, instance) in self.instances.iter().enumerate() {
            let mut child = instance.child.lock().unwrap();
            if child.try_wait().unwrap().is_some() {
                *child = self.again(number);
            }
        }
    }

    /// That no instance has ended.
    pub fn assert_alive(&self) {
        for number in 0..self.instances.len() {
            assert!(self.child(number).try_wait().unwrap().is_none(), "{}", self.said("err", number));
        }
    }

    /// What an instance wrote so far, to `out` or `err`.
    pub fn said(&self, what: &str, instance: usize) -> String {
        std::fs::read_to_string(self.here.path(&format!("{what}-{instance}"))).unwrap()
    }

    /// Tells every instance to end, and gives what each says that it did.
    pub fn stop(&self) -> Vec<Value> {
        (0..self.instances.len()).for_each(|number| signal(&self.child(number), "TERM"));
        let ended = |number| {
            let status = self.child(number).wait().unwrap();
            assert!(status.success(), "{status}: {}", self.said("err", number));
            serde_json::from_str(&self.said("out", number)).unwrap()
        };
        (0..self.instances.len()).map(ended).collect()
    }

    /// Asks the binary, with nothing between it and the server.
    pub fn json(&self, arguments: &[&str]) -> Value {
        self.here.json(0, &[arguments, &["--store", &self.place.url]].concat())
    }

    pub fn client(&self) -> Client {
        Client::new(self.place.kind, &self.place.url)
    }

    /// Waits until every run has ended.
    pub fn settle(&self, client: &Client, within: Duration) {
        let until = Instant::now() + within;
        loop {
            let counters = client.ask(async |store| store.counters().await);
            let live = |counters: Vec<flowline::store::Counter>| -> u64 {
                counters
                    .iter()
                    .filter(|counter| !counter.status.is_terminal())
                    .map(|counter| counter.count)
                    .sum()
            };
            let left = counters.map(live);
            if left == Ok(0) {
                return;
            }
            assert!(Instant::now() < until, "after {within:?} runs have not ended: {left:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The store, what clients were told and what the steps did agree: by the checker here, and by the binary.
    pub fn check(&self, client: &Client, history: &History) -> Dump {
        let dump = client.ask(async |store| Dump::of(store).await.unwrap());
        dump.assert_right(history, &ledger::read(&self.here));
        assert_eq!(self.json(&["verify"])["violations"], json!([]));
        for (key, run) in &dump.runs {
            assert!(run.row.status.is_terminal(), "{key} is {}", run.row.status);
        }
        dump
    }
}

/// An instance. What it writes is kept with what those before it in its place wrote.
fn work(here: &Here, number: usize, url: &str, flags: &[String]) -> Child {
    let file = |name: &str| {
        let path = here.path(&format!("{name}-{number}"));
        File::options().create(true).append(true).open(path).unwrap()
    };
    let mut command = here.command(&["work", "--json", "--store", url]);
    command.args(flags).stdout(file("out")).stderr(file("err")).spawn().unwrap()
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for instance in &self.instances {
            if let Ok(mut child) = instance.child.lock() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).stdin(Stdio::null()).status();
    assert!(sent.unwrap().success());
}

/// How many attempts each instance began, by the logs.
pub fn shares(dump: &Dump) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    let events = dump.runs.values().flat_map(|run| &run.events);
    for event in events.filter(|event| event.kind.as_str() == "step.started") {
        let data: Value = serde_json::from_str(event.data.as_ref().unwrap().get()).unwrap();
        *shares.entry(data["instance"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    shares
}
