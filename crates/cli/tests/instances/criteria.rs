//! What the event coordination spec calls success, one claim each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Duration;

use flowline::core::RunKey;
use flowline_check::History;
use serde_json::{Value, json};

use crate::instances::fleet::{Fleet, shares};
use crate::kit::client::Client;
use crate::kit::dice::soaking;
use crate::kit::dump::{Dump, Run};
use crate::kit::server::{Kind, Place};
use crate::kit::wait_for;

const STEPS: [&str; 4] = ["charge", "order", "reserve", "ship"];
/// Far beyond what it takes: a machine may be busy with other things.
const END: Duration = Duration::from_secs(600);

/// What came of many diamonds on several instances.
#[derive(Debug)]
struct Load {
    dump: Dump,
    /// What each instance says that it did.
    said: Vec<Value>,
    /// Lines that the steps wrote of themselves.
    lines: usize,
}

impl Load {
    fn new(kind: Kind, instances: usize, runs: usize) -> Load {
        let fleet = Fleet::new(Place::shared(kind), &vec![&["--slots", "16"][..]; instances]);
        let mut client = fleet.client();
        for number in 0..runs {
            assert!(client.start("diamond", &format!("run-{number}")).is_some());
        }
        fleet.settle(&client, END);
        let dump = fleet.check(&client, &client.history);
        let lines = std::fs::read_to_string(fleet.here.path("ledger")).unwrap().lines().count();
        let load = Load { dump, said: fleet.stop(), lines };
        let shares = shares(&load.dump);
        println!(
            "{kind:?}: {instances} instances, {runs} runs: {} commits, {} conflicts; steps by instance: {:?}",
            load.sum("commits"),
            load.sum("conflicts"),
            shares.values().collect::<Vec<_>>(),
        );
        assert_eq!(load.dump.runs.len(), runs);
        load
    }

    /// Three instances; the same for every claim about them.
    fn of_three(kind: Kind) -> &'static Load {
        static LOADS: [OnceLock<Load>; 2] = [OnceLock::new(), OnceLock::new()];
        let runs = if soaking() { 3_000 } else { 40 };
        LOADS[kind as usize].get_or_init(|| Load::new(kind, 3, runs))
    }

    fn sum(&self, what: &str) -> u64 {
        self.said.iter().map(|said| said[what].as_u64().unwrap()).sum()
    }

    fn assert_steps_once(&self) {
        for (key, run) in &self.dump.runs {
            for word in ["step.started", "step.completed"] {
                assert_eq!(steps(run, word), STEPS, "{word} of {key}");
            }
        }
        assert_eq!(self.lines, self.dump.runs.len() * STEPS.len() * 2, "by the steps' own ledger");
    }

    fn assert_few_conflicts(&self) {
        let (commits, conflicts) = (self.sum("commits"), self.sum("conflicts"));
        assert!(conflicts * 20 < commits, "{conflicts} conflicts, {commits} commits");
    }
}

/// The steps that a log has such an event of, sorted.
fn steps(run: &Run, word: &str) -> Vec<String> {
    let events = run.events.iter().filter(|event| event.kind.as_str() == word);
    let mut steps: Vec<String> = events.map(|event| event.step_name.as_ref().unwrap().to_string()).collect();
    steps.sort();
    steps
}

pub fn no_step_is_enqueued_twice_by_three_instances(kind: Kind) {
    Load::of_three(kind).assert_steps_once();
}

pub fn the_terminal_event_of_a_run_is_published_once(kind: Kind) {
    for (key, run) in &Load::of_three(kind).dump.runs {
        let terminal: Vec<u64> =
            run.events.iter().filter(|event| event.kind.is_terminal()).map(|event| event.seq).collect();
        assert_eq!(terminal, [run.events.len() as u64], "{key}");
    }
}

pub fn fewer_than_one_commit_in_twenty_meets_another(kind: Kind) {
    Load::of_three(kind).assert_few_conflicts();
}

pub fn ten_instances_take_a_hundred_flows_at_once(kind: Kind) {
    let load = Load::new(kind, 10, 100);
    load.assert_steps_once();
    load.assert_few_conflicts();
    assert!(shares(&load.dump).len() > 1, "one instance did it all");
}

/// Both branches end at the same moment, on different instances; the join notes what it was given.
pub fn emits_never_race_with_what_they_trigger(kind: Kind) {
    const RACE: &str = r#"
flow: race
steps:
  order: { command: ["true"], returns: ordered }
  charge: { queue: left, subscribes: [ordered], command: [sh, race.sh], returns: charged }
  reserve: { queue: right, subscribes: [ordered], command: [sh, race.sh], returns: reserved }
  ship: { subscribes: [charged, reserved], command: [sh, -c, 'echo "$(cat)" >> inputs'] }
"#;
    const MEET: &str = r#"
: > "$FLOWLINE_RUN_ID.$FLOWLINE_STEP"
until [ -e "$FLOWLINE_RUN_ID.charge" ] && [ -e "$FLOWLINE_RUN_ID.reserve" ]; do sleep 0.01; done
echo "{\"result\": \"$FLOWLINE_STEP\"}"
"#;
    let (left, right): (&[&str], &[&str]) = (&["--queue", "right=0"], &["--queue", "left=0"]);
    let fleet = Fleet::new(Place::shared(kind), &[left, right]);
    fleet.here.write("race.yaml", RACE);
    fleet.here.write("race.sh", MEET);
    let mut client = fleet.client();
    client.learn(&fleet.here, "race.yaml");
    // Fewer than slots, or branches could wait for each other for ever.
    let runs = 20;
    for number in 0..runs {
        assert!(client.start("race", &format!("run-{number}")).is_some());
    }
    fleet.settle(&client, END);
    assert_eq!(fleet.json(&["verify"])["violations"], json!([]));
    let inputs = std::fs::read_to_string(fleet.here.path("inputs")).unwrap();
    let mut joined = BTreeSet::new();
    for line in inputs.lines() {
        let given: Value = serde_json::from_str(line).unwrap();
        assert_eq!(given["input"], json!({ "charged": "charge", "reserved": "reserve" }), "{line}");
        assert!(joined.insert(given["runId"].as_str().unwrap().to_owned()), "joined twice: {line}");
    }
    assert_eq!(joined.len(), runs);
}

/// From a run's first event to its last, one run at a time: with one instance, and with three on another store of the same
/// server, in turn, so that whatever else the machine does slows down both.
pub fn sharing_a_store_adds_less_than_100_ms_to_a_run(kind: Kind) {
    let fleet = |instances| Fleet::new(Place::shared(kind), &vec![&[][..]; instances]);
    let fleets = [fleet(1), fleet(3)];
    let mut clients = fleets.each_ref().map(Fleet::client);
    let mut took = [Vec::new(), Vec::new()];
    for number in 0..21 {
        for ((fleet, client), took) in fleets.iter().zip(&mut clients).zip(&mut took) {
            let run = client.start("diamond", &format!("run-{number}")).unwrap();
            wait_for("the run ends", || client.has_ended(&run));
            took.push(duration(fleet, run.run.as_str()));
        }
    }
    let [alone, shared] = took.map(median);
    println!("{kind:?}: a diamond takes {alone} ms with one instance, {shared} ms with three");
    assert!(shared < alone + 100, "{alone} ms, and {shared} ms with three instances");
}

/// How long a run took, by its log.
fn duration(fleet: &Fleet, run: &str) -> i64 {
    let said = fleet.here.flowline(&["events", run, "--json", "--store", &fleet.place.url]);
    let last: Value = serde_json::from_str(said.out.lines().last().unwrap()).unwrap();
    last["data"]["duration"].as_i64().unwrap()
}

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values[values.len() / 2]
}

const HELD: &str = r#"
flow: held
steps:
  wait: { command: [sh, held.sh], returns: waited }
  close: { subscribes: [waited], command: [sh, quick.sh] }
"#;

const WAIT: &str = r#"
say() { echo "$FLOWLINE_RUN_ID $FLOWLINE_STEP $FLOWLINE_ATTEMPT $1" >> ledger; }
say began
until [ -e go ]; do sleep 0.02; done
say done
"#;

/// Two instances with a short lease, and a run whose first step one of them, whose number is given too, is held up in.
fn held(kind: Kind) -> (Fleet, Client, RunKey, usize) {
    let fleet = Fleet::new(Place::shared(kind), &[&["--lease", "2s"][..]; 2]);
    fleet.here.write("held.yaml", HELD);
    fleet.here.write("held.sh", WAIT);
    let mut client = fleet.client();
    client.learn(&fleet.here, "held.yaml");
    let run = client.start("held", "held").unwrap();
    wait_for("the step has begun", || began(&client, &run).len() == 1);
    let holder = fleet.named(&began(&client, &run)[&1]);
    (fleet, client, run, holder)
}

/// Who began each attempt of a run's first step.
fn began(client: &Client, run: &RunKey) -> BTreeMap<u32, String> {
    let dump = client.ask(async |store| Dump::of(store).await.unwrap());
    let events = &dump.runs[run].events;
    let began = events.iter().filter(|event| event.kind.as_str() == "step.started");
    let who = |event: &flowline::core::Event| {
        let data: Value = serde_json::from_str(event.data.as_ref().unwrap().get()).unwrap();
        (event.attempt.unwrap(), data["instance"].as_str().unwrap().to_owned())
    };
    began.filter(|event| event.step_name.as_deref() == Some("wait")).map(who).collect()
}

/// The other instance has the step now: lets it go on, and looks at how the run ended.
fn made_up_for(fleet: &Fleet, client: &Client, history: &History, run: &RunKey, holder: usize) {
    wait_for("another has the step", || began(client, run).len() == 2);
    assert_ne!(fleet.named(&began(client, run)[&2]), holder);
    fleet.here.write("go", "");
    fleet.settle(client, END);
    let dump = fleet.check(client, history);
    let run = &dump.runs[run];
    assert_eq!(
        (run.row.status.as_str(), steps(run, "step.completed")),
        ("completed", vec!["close".into(), "wait".into()])
    );
    let completed = run.events.iter().find(|event| event.kind.as_str() == "step.completed").unwrap();
    assert_eq!(completed.attempt, Some(2));
}

pub fn a_crashed_instance_is_made_up_for_by_another(kind: Kind) {
    let (fleet, client, run, holder) = held(kind);
    fleet.crash(holder);
    made_up_for(&fleet, &client, &client.history, &run, holder);
}

pub fn an_expired_lease_does_not_corrupt_its_run(kind: Kind) {
    let (fleet, client, run, holder) = held(kind);
    fleet.signal(holder, "STOP");
    made_up_for(&fleet, &client, &client.history, &run, holder);
    let before = client.ask(async |store| Dump::of(store).await.unwrap());
    // Its step has ended meanwhile too, and it says so, too late.
    fleet.signal(holder, "CONT");
    let said = fleet.stop();
    let after = fleet.check(&client, &client.history);
    assert_eq!(after.runs[&run].events, before.runs[&run].events, "{said:?}");
}

pub fn a_lost_connection_is_told_and_outlived(kind: Kind) {
    let fleet = Fleet::new(Place::shared(kind), &[&["--lease", "2s"]]);
    let mut client = fleet.client();
    let proxy = &fleet.instances[0].proxy;
    assert!(client.start("diamond", "before").is_some());
    fleet.settle(&client, END);
    proxy.isolate(true);
    wait_for("the instance tells", || fleet.said("err", 0).contains("warning"));
    let refused = fleet.here.flowline(&["start", "diamond.yaml", "--store", &fleet.place.by(proxy.port)]);
    refused.refused(3, &["127.0.0.1"]);
    assert!(client.start("diamond", "meanwhile").is_some());
    proxy.isolate(false);
    fleet.settle(&client, END);
    fleet.assert_alive();
    assert_eq!(fleet.check(&client, &client.history).runs.len(), 2);
}

/// What a run's log says, without names of instances, dates and durations. Branches may come in any order.
fn told(fleet: &Fleet, url: &str) -> (Value, Vec<(String, String, u64)>) {
    let ran = fleet.here.json(0, &["run", "diamond.yaml", "--store", url]);
    let said = fleet.here.flowline(&["events", ran["runId"].as_str().unwrap(), "--json", "--store", url]);
    let mut told: Vec<(String, String, u64)> = Vec::new();
    for line in said.out.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        told.push((text("type"), text("stepName"), event["attempt"].as_u64().unwrap_or(0)));
    }
    told.sort();
    (ran["status"].clone(), told)
}

pub fn one_instance_does_on_a_server_what_it_does_on_a_file(kind: Kind) {
    let fleet = Fleet::new(Place::shared(kind), &[]);
    let on_file = told(&fleet, "sqlite:alone.db");
    assert!(on_file.1.len() > 10, "{on_file:?}");
    assert_eq!(told(&fleet, &fleet.place.url), on_file);
}

pub fn only_the_url_says_whether_a_store_is_shared(kind: Kind) {
    let fleet = Fleet::new(Place::shared(kind), &[]);
    let answers = |url: &str| {
        let ask = |arguments: &[&str]| fleet.here.json(0, &[arguments, &["--store", url]].concat());
        let start = ["start", "diamond.yaml", "--idempotency-key", "one"];
        // The same key names the same run in every store.
        let run = ask(&start)["runId"].as_str().unwrap().to_owned();
        assert_eq!(ask(&start)["runId"], run.as_str());
        let worked = ask(&["work", "--until-idle"]);
        let shown = ask(&["show", &run]);
        let counted = ask(&["runs", "--status", "completed"])["total"].clone();
        let verified = ask(&["verify"])["violations"].clone();
        json!([run, worked["runs"], worked["steps"], shown["status"], counted, verified])
    };
    assert_eq!(answers(&fleet.place.url), answers("sqlite:alone.db"));
}

/// More at once than one instance has slots for: nobody is left idle beside it.
pub fn every_instance_gets_its_share_of_a_backlog(kind: Kind) {
    let fleet = Fleet::new(Place::shared(kind), &[&["--slots", "2"][..]; 3]);
    let mut client = fleet.client();
    for number in 0..30 {
        let run = client.start("hit", &format!("run-{number}")).unwrap();
        client.approve(&run.run);
    }
    fleet.settle(&client, END);
    let shares = shares(&fleet.check(&client, &client.history));
    assert_eq!(shares.len(), 3, "{shares:?}");
}
