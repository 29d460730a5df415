//! Processes killed and stopped under load.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flowline::core::{RunId, RunKey, Tenant};
use flowline_check::{ClientReply, ClientRequest, History};
use flowline_sqlite::OpenMode;

use crate::kit::dice::{Dice, seed, soaking};
use crate::kit::dump::Dump;
use crate::kit::ledger;
use crate::kit::place::Here;
use crate::kit::silence::{self, now};

/// Places that are worked on side by side, each with its share of the faults.
const PLACES: u64 = 4;
/// The shortest that is allowed.
const LEASE: Duration = Duration::from_secs(1);
/// A worker that is killed while it forks a step leaves its lock to the child until that runs its program.
const FORKED: Duration = Duration::from_millis(20);
/// After a fault has ended, every run gets on within this time.
const BOUND: Duration = Duration::from_secs(3);

/// What one place went through.
#[derive(Debug, Default)]
struct Tally {
    kills: usize,
    pauses: usize,
    runs: usize,
    attempts: usize,
    lost: usize,
    failed: usize,
    silence: Duration,
}

#[test]
fn a_loaded_worker_killed_and_stopped_at_random_breaks_nothing() {
    let seed = seed();
    let (kills, pauses) = if soaking() { (200, 50) } else { (40, 10) };
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let share = |of: u64, number: u64| (of / PLACES + u64::from(number < of % PLACES)) as usize;
        let place = |number| {
            let (kills, pauses) = (share(kills, number), share(pauses, number));
            scope.spawn(move || Scene::new(seed.wrapping_add(number)).play(kills, pauses))
        };
        let places: Vec<_> = (0..PLACES).map(place).collect();
        places.into_iter().map(|place| place.join().unwrap()).collect()
    });
    let sum = |of: fn(&Tally) -> usize| tallies.iter().map(of).sum::<usize>();
    let silence = tallies.iter().map(|tally| tally.silence).max().unwrap();
    println!(
        "{} kills and {} pauses, {} runs, {} attempts of which {} were lost, {} runs failed by that; longest silence {silence:?}",
        sum(|tally| tally.kills),
        sum(|tally| tally.pauses),
        sum(|tally| tally.runs),
        sum(|tally| tally.attempts),
        sum(|tally| tally.lost),
        sum(|tally| tally.failed),
    );
    assert_eq!((sum(|tally| tally.kills), sum(|tally| tally.pauses)), (kills as usize, pauses as usize));
    assert!(sum(|tally| tally.lost) > 0, "the faults missed the steps");
    // A machine that does other things may be late; one that is asked to show it may not.
    assert!(!soaking() || silence <= BOUND, "nothing happened to a run for {silence:?}");
}

#[test]
fn an_attempt_that_slept_with_its_engine_goes_on() {
    let here = Here::new();
    let run = here.start(&["slow.yaml"]);
    let mut engine = here
        .command(&["work", "--lease", "1s", "--until-idle"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let began = |here: &Here| here.flowline(&["events", &run]).out.contains("here");
    while !began(&here) {
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(&engine, "STOP");
    std::thread::sleep(LEASE + Duration::from_millis(500));
    signal(&engine, "CONT");
    // Time for it to look for leases that ran out, and to find its own.
    std::thread::sleep(LEASE);
    here.write("go", "");
    assert!(engine.wait().unwrap().success());
    let events = here.flowline(&["events", &run]).out;
    assert!(events.contains("flow.completed") && !events.contains("attempt-2"), "{events}");
    assert_eq!(here.json(0, &["show", &run])["retries"], 0);
}

/// A place under faults, and what its clients know.
struct Scene {
    here: Here,
    dice: Dice,
    history: History,
    /// Input by idempotency key.
    started: BTreeMap<String, String>,
    /// When nobody worked: from and to, in milliseconds of the clock.
    faults: Vec<(i64, i64)>,
    tally: Tally,
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

impl Scene {
    fn new(seed: u64) -> Scene {
        Scene {
            here: ledger::here(),
            dice: Dice(seed),
            history: History::default(),
            started: BTreeMap::new(),
            faults: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn play(mut self, kills: usize, pauses: usize) -> Tally {
        let mut dead_since = now();
        while self.tally.kills < kills || self.tally.pauses < pauses {
            for _ in 0..self.dice.roll(3) + 1 {
                self.start(self.tally.kills < kills);
            }
            self.act(self.tally.kills < kills);
            let pause = self.tally.pauses < pauses
                && (self.tally.kills >= kills || self.dice.one_in((kills / pauses.max(1)) as u64));
            let kill = self.tally.kills < kills;
            self.faults.push((dead_since, now()));
            dead_since = self.work(pause, kill);
        }
        self.finish(dead_since);
        self.tally
    }

    /// A worker lives for a while, perhaps stands still for longer than its leases last, and is killed or told to stop.
    fn work(&mut self, pause: bool, kill: bool) -> i64 {
        let mut child = self
            .here
            .command(&["work", "--lease", "1s"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (least, most) = (Duration::from_millis(60), Duration::from_millis(600));
        std::thread::sleep(self.dice.between(least, most));
        if pause {
            let from = now();
            signal(&child, "STOP");
            std::thread::sleep(self.dice.between(LEASE, LEASE + Duration::from_millis(500)));
            signal(&child, "CONT");
            self.faults.push((from, now()));
            self.tally.pauses += 1;
            std::thread::sleep(self.dice.between(least, most));
        }
        match kill {
            true => child.kill().unwrap(),
            false => signal(&child, "TERM"),
        }
        let at = now();
        let status = child.wait().unwrap();
        match kill {
            _ if status.code() == Some(3) => {
                std::thread::sleep(FORKED);
                return at;
            }
            true => assert_eq!(status.signal(), Some(9), "it ended by itself: {status:?}"),
            false => assert!(status.success(), "{status:?}"),
        }
        self.tally.kills += usize::from(kill);
        at
    }

    /// Starts a run under a key of its own, or again under one that was used before.
    fn start(&mut self, may_kill: bool) {
        let again = !self.started.is_empty() && self.dice.one_in(4);
        let number = match again {
            true => self.dice.roll(self.started.len() as u64) as usize,
            false => self.started.len(),
        };
        let key = format!("key-{number}");
        let other = again && self.dice.one_in(2);
        let body = if other { "-1".to_owned() } else { number.to_string() };
        let arguments = ["start", "hit.yaml", "--idempotency-key", &key, "--input", &body];
        let (outcome, said) = self.call(&arguments, may_kill);
        let known = self.started.entry(key.clone()).or_insert(body.clone());
        assert!(*known == body || outcome != ClientReply::Acknowledged, "{key} was taken with another input");
        let act = ClientRequest::Start {
            run: said.map(|said| RunId::new(said.trim()).unwrap()),
            flow: "hit".into(),
            key: Some(key),
            body: Some(body),
        };
        self.history.push(&Tenant::default(), act, outcome);
    }

    /// Approves or cancels one of the runs that were acknowledged.
    fn act(&mut self, may_kill: bool) {
        let told: Vec<RunId> = self.told();
        if told.is_empty() {
            return;
        }
        let run = told[self.dice.roll(told.len() as u64) as usize].clone();
        let id = run.as_str().to_owned();
        if self.dice.one_in(6) {
            let (outcome, _) = self.call(&["cancel", &id], may_kill);
            self.history.push(&Tenant::default(), ClientRequest::Cancel { run }, outcome);
        } else {
            self.approve(run, may_kill);
        }
    }

    fn approve(&mut self, run: RunId, may_kill: bool) {
        let id = run.as_str().to_owned();
        let (outcome, _) = self.call(&["send", &id, "approved", "--payload", "1"], may_kill);
        let act = ClientRequest::Send { run, name: "approved".into(), event_id: None };
        self.history.push(&Tenant::default(), act, outcome);
    }

    /// Runs that a client was told of.
    fn told(&self) -> Vec<RunId> {
        let told = self.history.operations.iter().filter_map(|operation| match &operation.act {
            ClientRequest::Start { run, .. } if operation.outcome == ClientReply::Acknowledged => run.clone(),
            _ => None,
        });
        told.collect()
    }

    /// Runs a command, now and then killed at any moment. Whoever has read the whole line has been told.
    fn call(&mut self, arguments: &[&str], may_kill: bool) -> (ClientReply, Option<String>) {
        let mut child = self.here.spawn(arguments);
        if may_kill && self.dice.one_in(8) {
            std::thread::sleep(self.dice.between(Duration::ZERO, Duration::from_millis(60)));
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        if output.status.code() == Some(3) && String::from_utf8_lossy(&output.stderr).contains("in use") {
            std::thread::sleep(FORKED);
            return self.call(arguments, false);
        }
        self.tally.kills += usize::from(output.status.signal() == Some(9));
        let out = String::from_utf8(output.stdout).unwrap();
        match (output.status.code(), out.ends_with('\n')) {
            (Some(0), _) | (None, true) => (ClientReply::Acknowledged, Some(out)),
            (None, false) => (ClientReply::Unknown, None),
            (Some(code), _) => {
                assert_eq!(code, 2, "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
                (ClientReply::Refused, None)
            }
        }
    }

    /// Faults are over: everything comes to its end, and the checker has the word.
    fn finish(&mut self, dead_since: i64) {
        let runs: Vec<RunId> = {
            let dump = Dump::read(&self.here.path(".flowline/flowline.db"), OpenMode::Client).unwrap();
            dump.runs.keys().map(|key| key.run.clone()).collect()
        };
        for run in runs {
            self.approve(run, false);
        }
        self.faults.push((dead_since, now()));
        let said = self.here.flowline(&["work", "--until-idle", "--lease", "1s"]);
        assert_eq!(said.exit, 0, "{said:?}");
        let dump = Dump::read(&self.here.path(".flowline/flowline.db"), OpenMode::Client).unwrap();
        dump.assert_right(&self.history, &ledger::read(&self.here));
        assert_eq!(self.here.json(0, &["verify"])["violations"], serde_json::json!([]));
        for (key, run) in &dump.runs {
            assert!(run.row.status.is_terminal(), "{key} is {}", run.row.status);
            self.count(key, &dump);
        }
        self.tally.runs = dump.runs.len();
    }

    fn count(&mut self, key: &RunKey, dump: &Dump) {
        let run = &dump.runs[key];
        let of = |kind: &str| run.events.iter().filter(|event| event.kind.as_str() == kind).count();
        self.tally.attempts += of("step.started");
        self.tally.failed += of("step.failed");
        let lost = |event: &&flowline::core::Event| {
            event.data.as_ref().is_some_and(|data| data.get().contains("\"cause\":\"lease_lost\""))
        };
        self.tally.lost += run.events.iter().filter(lost).count();
        self.tally.silence = self.tally.silence.max(silence::longest(&run.events, &self.faults));
    }
}
