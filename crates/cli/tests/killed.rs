//! Processes killed at random moments, and stopped by signals: nothing acknowledged is lost, nothing finished is done again,
//! and what was interrupted goes on at once.
//!
//! Steps write what they do to a ledger of their own, outside the store, so that the log is held against what happened.
#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::kit::place::{Here, Said};
use serde_json::Value;

const KILLS: usize = 100;
/// Places that are worked on side by side, each with its share of the kills.
const PLACES: usize = 4;
/// Kills of one run. A step may lose five leases before it fails.
const KILLS_OF_A_RUN: usize = 5;
/// Far below the lease of 30 s, and far above what a busy machine needs.
const AT_ONCE: i64 = 10_000;

/// A diamond and a chain behind it.
const FLOW: &str = r#"
flow: killed
steps:
  order: { command: [sh, step.sh], returns: ordered }
  charge: { subscribes: [ordered], command: [sh, step.sh], returns: charged }
  reserve: { subscribes: [ordered], command: [sh, step.sh], returns: reserved }
  ship: { subscribes: [charged, reserved], command: [sh, step.sh], returns: shipped }
  tell: { subscribes: [shipped], command: [sh, step.sh], returns: told }
  close: { subscribes: ["step:tell"], command: [sh, step.sh] }
"#;

const STEPS: [&str; 6] = ["order", "charge", "reserve", "ship", "tell", "close"];

const STEP: &str = r#"
echo "$FLOWLINE_RUN_ID $FLOWLINE_STEP $FLOWLINE_ATTEMPT start" >> ledger
sleep 0.05
echo "$FLOWLINE_RUN_ID $FLOWLINE_STEP $FLOWLINE_ATTEMPT end" >> ledger
"#;

/// Enough randomness to choose moments; a seed gives the same choices again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Any moment of a life.
    fn moment(&mut self, life: Duration) -> Duration {
        Duration::from_micros(self.roll() % (life.as_micros() as u64).max(1))
    }
}

/// From `FLOWLINE_SEED` to repeat a failure, or from the clock; printed either way.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = std::env::var("FLOWLINE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(now.as_nanos() as u64);
    println!("FLOWLINE_SEED={seed}");
    seed
}

fn here() -> Here {
    let here = Here::new();
    here.write("killed.yaml", FLOW);
    here.write("step.sh", STEP);
    here.write("ledger", "");
    here
}

/// Starts a command of which nobody reads what it says.
fn begin(here: &Here, arguments: &[&str]) -> Child {
    here.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills a process at a moment of its life; false where it had ended by then.
fn kill_within(child: &mut Child, moment: Duration) -> bool {
    std::thread::sleep(moment);
    child.kill().unwrap();
    let status: ExitStatus = child.wait().unwrap();
    assert!(status.signal() == Some(9) || status.success(), "it failed by itself: {status:?}");
    status.signal() == Some(9)
}

#[test]
fn a_run_killed_a_hundred_times_completes_and_does_nothing_twice() {
    let seed = seed();
    let killed: Vec<Tally> = std::thread::scope(|scope| {
        let worker = |number| scope.spawn(move || kill_runs(seed.wrapping_add(number)));
        let workers: Vec<_> = (0..PLACES as u64).map(worker).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let sum = |of: fn(&Tally) -> usize| killed.iter().map(of).sum::<usize>();
    println!(
        "{} kills of {} runs: {} before the run was there, {} steps interrupted, longest wait {} ms",
        sum(|tally| tally.kills),
        sum(|tally| tally.runs),
        sum(|tally| tally.before_start),
        sum(|tally| tally.interrupted),
        killed.iter().map(|tally| tally.longest_wait).max().unwrap()
    );
    assert_eq!(sum(|tally| tally.kills), KILLS);
    assert!(sum(|tally| tally.interrupted) > KILLS / 10, "the kills missed the steps");
}

#[derive(Debug, Default)]
struct Tally {
    kills: usize,
    runs: usize,
    before_start: usize,
    interrupted: usize,
    longest_wait: i64,
}

/// Kills runs one after the other, every second one in a store of its own, so that its making is killed too.
fn kill_runs(seed: u64) -> Tally {
    let mut dice = Dice(seed);
    let life = life_of_a_run();
    let mut tally = Tally::default();
    let mut place = here();
    while tally.kills < KILLS / PLACES {
        if tally.runs % 2 == 0 {
            place = here();
        }
        let key = format!("run-{}", tally.runs);
        kill_run(&place, &key, &mut dice, life, &mut tally);
        tally.runs += 1;
    }
    tally
}

/// How long an undisturbed run takes on this machine, with its start-up.
fn life_of_a_run() -> Duration {
    let place = here();
    let begun = Instant::now();
    assert_eq!(place.flowline(&["run", "killed.yaml"]).exit, 0);
    begun.elapsed()
}

/// Kills whoever works on a run until it has had its share, then lets it end.
fn kill_run(here: &Here, key: &str, dice: &mut Dice, life: Duration, tally: &mut Tally) {
    let run = ["run", "killed.yaml", "--idempotency-key", key];
    let work = ["work", "--until-idle"];
    let mut leased = BTreeSet::new();
    let mut id = None;
    for _ in 0..KILLS_OF_A_RUN {
        if tally.kills == KILLS / PLACES {
            break;
        }
        let mut child = begin(here, if id.is_none() { &run } else { &work });
        if !kill_within(&mut child, dice.moment(life)) {
            break;
        }
        tally.kills += 1;
        id = id.or_else(|| find(here, key));
        match &id {
            Some(id) => {
                let (held, ended) = leases(here, id);
                leased.extend(held);
                if ended {
                    break;
                }
            }
            None => tally.before_start += 1,
        }
    }
    // A run that was never acknowledged is asked for again.
    if id.is_none() {
        assert_eq!(here.flowline(&run).exit, 0);
    }
    let id = find(here, key).expect("an acknowledged run is there");
    assert_eq!(here.flowline(&work).exit, 0);
    tally.interrupted += leased.len();
    let log = Log::read(here, &id);
    log.check(&leased);
    check_ledger(here, &id, &log);
    tally.longest_wait = tally.longest_wait.max(log.longest_wait());
    let report = here.json(0, &["verify"]);
    assert_eq!(report["violations"], serde_json::json!([]), "{report}");
}

fn find(here: &Here, key: &str) -> Option<String> {
    let said = here.flowline(&["runs", "--all", "--json"]);
    if said.exit == 3 {
        assert!(said.err.contains("there is no store") || said.out.contains("store-missing"), "{said:?}");
        return None;
    }
    let runs: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    let of_key = |row: &&Value| row["idempotencyKey"] == key;
    let found: Vec<&Value> = runs["items"].as_array().unwrap().iter().filter(of_key).collect();
    assert!(found.len() <= 1, "one key, one run: {found:?}");
    found.first().map(|row| row["runId"].as_str().unwrap().to_owned())
}

/// Attempts that were being worked on when their engine was killed, and whether the run had ended.
fn leases(here: &Here, run: &str) -> (Vec<(String, u64)>, bool) {
    let shown = here.json(0, &["show", run]);
    let leased = shown["jobs"].as_array().unwrap().iter().filter(|job| job["state"] == "leased");
    let named = |job: &Value| (job["name"].as_str().unwrap().to_owned(), job["attempt"].as_u64().unwrap());
    (leased.map(named).collect(), shown["status"] == "completed")
}

/// The events of one run.
struct Log(Vec<Value>);

impl Log {
    fn read(here: &Here, run: &str) -> Log {
        let said = here.flowline(&["events", run, "--json"]);
        assert_eq!(said.exit, 0, "{said:?}");
        Log(said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    fn attempts(&self, kind: &str, step: &str) -> Vec<u64> {
        let of = |event: &&Value| event["type"] == kind && event["stepName"] == step;
        self.0.iter().filter(of).map(|event| event["attempt"].as_u64().unwrap()).collect()
    }

    /// Attempts are contiguous, each but the last was lost, and exactly those that were leased at a kill.
    fn check(&self, leased: &BTreeSet<(String, u64)>) {
        assert_eq!(self.0.last().unwrap()["type"], "flow.completed", "{:?}", self.0);
        let mut lost = BTreeSet::new();
        for step in STEPS {
            let last = self.last(step);
            assert_eq!(self.attempts("step.completed", step), [last], "{step}: {:?}", self.0);
            assert_eq!(self.attempts("step.started", step), Vec::from_iter(1..=last), "{step}");
            assert_eq!(self.attempts("step.retry", step), Vec::from_iter(1..last), "{step}");
            lost.extend((1..last).map(|attempt| (step.to_owned(), attempt)));
        }
        assert_eq!(lost, *leased, "what was interrupted has the next attempt, and nothing else has");
        let retries = self.0.iter().filter(|event| event["type"] == "step.retry");
        assert!(retries.clone().all(|event| event["data"]["code"] == "lease_lost"), "{:?}", self.0);
        assert!(self.longest_wait() < AT_ONCE, "it went on only after {} ms", self.longest_wait());
    }

    fn last(&self, step: &str) -> u64 {
        self.attempts("step.started", step).into_iter().max().unwrap_or(0)
    }

    /// The longest time in which nothing happened, in milliseconds.
    fn longest_wait(&self) -> i64 {
        let ms = |event: &Value| event["id"].as_str().unwrap().split('-').next().unwrap().parse().unwrap();
        let times: Vec<i64> = self.0.iter().map(ms).collect();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    }
}

/// What the steps themselves saw: no attempt ran twice, none after the completed one, and the completed one to its end.
fn check_ledger(here: &Here, run: &str, log: &Log) {
    let text = std::fs::read_to_string(here.path("ledger")).unwrap();
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines() {
        if let Some(("", rest)) = line.split_once(run) {
            *lines.entry(rest.trim_start()).or_default() += 1;
        }
    }
    for (line, times) in &lines {
        assert_eq!(*times, 1, "{line:?} happened {times} times");
        let [step, attempt, _] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        let completed = log.last(step);
        assert!(attempt.parse::<u64>().unwrap() <= completed, "{line:?} after attempt {completed} completed");
    }
    for step in STEPS {
        for what in ["start", "end"] {
            let line = format!("{step} {} {what}", log.last(step));
            assert!(
                lines.contains_key(line.as_str()),
                "{line:?} is in the log and never happened: {lines:?}"
            );
        }
    }
}

#[test]
fn an_acknowledged_start_survives_any_kill() {
    const STARTS: usize = 40;
    let mut dice = Dice(seed());
    let here = here();
    let begun = Instant::now();
    here.start(&["killed.yaml"]);
    let life = begun.elapsed();
    let mut acknowledged = BTreeMap::new();
    for number in 0..STARTS {
        let key = format!("key-{number}");
        let mut child = here.spawn(&["start", "killed.yaml", "--idempotency-key", &key]);
        std::thread::sleep(dice.moment(life * 5 / 4));
        child.kill().unwrap();
        // Whoever has read the whole line has been told, killed or not.
        let output = child.wait_with_output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        if let Some(id) = out.strip_suffix('\n') {
            acknowledged.insert(key, id.to_owned());
        } else {
            assert!(!output.status.success(), "exit code 0 without an id");
        }
    }
    println!("{} of {STARTS} starts acknowledged", acknowledged.len());
    for (key, id) in &acknowledged {
        assert_eq!(find(&here, key).as_ref(), Some(id), "{key} was acknowledged and lost");
    }
    for number in 0..STARTS {
        let key = format!("key-{number}");
        let there = find(&here, &key);
        let again = here.json(0, &["start", "killed.yaml", "--idempotency-key", &key]);
        assert_eq!(again["existed"], there.is_some());
        assert!(there.is_none_or(|id| again["runId"] == *id));
    }
    assert_eq!(here.flowline(&["work", "--until-idle"]).exit, 0);
    assert_eq!(here.json(0, &["runs", "--status", "completed"])["total"], STARTS + 1);
    let report = here.json(0, &["verify"]);
    assert_eq!((&report["violations"], &report["runs"]), (&serde_json::json!([]), &(STARTS + 1).into()));
}

/// Ends when a file named `go` is there; the step after it runs at once.
const PATIENT: &str = "flow: patient\nsteps:\n  \
    wait: { command: [sh, -c, 'echo here; while [ ! -e go ]; do sleep 0.02; done'] }\n  \
    after: { subscribes: ['step:wait'], command: [echo, after] }\n";

/// A run that has come into its first step, and what it says from then on.
fn patient(arguments: &[&str]) -> (Here, Child, Lines) {
    let here = Here::new();
    here.write("patient.yaml", PATIENT);
    let (child, lines) =
        resume(&here, &[&["run", "patient.yaml", "--idempotency-key", "k"], arguments].concat());
    (here, child, lines)
}

fn resume(here: &Here, arguments: &[&str]) -> (Child, Lines) {
    let mut child = here.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = Lines(BufReader::new(child.stderr.take().unwrap()));
    lines.until("| here");
    (child, lines)
}

struct Lines(BufReader<ChildStderr>);

impl Lines {
    fn until(&mut self, text: &str) {
        let mut line = String::new();
        while self.0.read_line(&mut line).unwrap() > 0 {
            if line.contains(text) {
                return;
            }
            line.clear();
        }
        panic!("it ended without {text:?}");
    }

    /// Reads on to the end, and waits for the process.
    fn end(mut self, mut child: Child) -> Said {
        let mut err = String::new();
        self.0.read_to_string(&mut err).unwrap();
        Said { exit: child.wait().unwrap().code().unwrap_or(-1), out: String::new(), err }
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_terminated_run_lets_its_step_finish_and_starts_no_other() {
    for name in ["TERM", "HUP"] {
        let (here, child, mut lines) = patient(&["--drain", "10m"]);
        signal(&child, name);
        lines.until("stopping");
        here.write("go", "");
        let said = lines.end(child);
        assert_eq!(said.exit, 130, "{name}: {said:?}");
        assert!(said.err.contains("1 step done") && said.err.contains("flowline work"), "{said:?}");
        let id = find(&here, "k").unwrap();
        let log = Log::read(&here, &id);
        assert_eq!(log.attempts("step.completed", "wait"), [1]);
        assert_eq!(log.attempts("step.started", "after"), [] as [u64; 0]);
        assert_eq!(here.flowline(&["work", "--until-idle"]).exit, 0);
        let log = Log::read(&here, &id);
        assert_eq!((log.last("wait"), log.last("after")), (1, 1), "nothing was lost");
        assert_eq!(here.json(0, &["verify"])["violations"], serde_json::json!([]));
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let (here, child, mut lines) = patient(&["--drain", "10m"]);
    signal(&child, "TERM");
    lines.until("stopping");
    signal(&child, "TERM");
    // The step would go on for ever: that the process ends is the claim.
    let said = lines.end(child);
    assert_eq!(said.exit, 130, "{said:?}");
    here.write("go", "");
    assert_eq!(here.flowline(&["work", "--until-idle"]).exit, 0);
    let log = Log::read(&here, &find(&here, "k").unwrap());
    assert_eq!((log.attempts("step.retry", "wait"), log.last("wait")), (vec![1], 2));
    assert_eq!(here.json(0, &["verify"])["violations"], serde_json::json!([]));
}

#[test]
fn attempts_given_back_are_not_counted_as_lost() {
    // One more than the leases that a step may lose.
    const STOPS: u64 = 7;
    let (here, child, lines) = patient(&["--drain", "10ms"]);
    signal(&child, "TERM");
    assert_eq!(lines.end(child).exit, 130);
    for _ in 1..STOPS {
        let (child, lines) = resume(&here, &["work", "--until-idle", "--drain", "10ms"]);
        signal(&child, "TERM");
        assert_eq!(lines.end(child).exit, 130);
    }
    here.write("go", "");
    assert_eq!(here.flowline(&["work", "--until-idle"]).exit, 0);
    let id = find(&here, "k").unwrap();
    let log = Log::read(&here, &id);
    assert_eq!(log.attempts("step.started", "wait"), Vec::from_iter(1..=STOPS + 1));
    let retries: Vec<&Value> = log.0.iter().filter(|event| event["type"] == "step.retry").collect();
    assert!(retries.iter().all(|event| event["data"]["code"] == "released"), "{retries:?}");
    assert_eq!(here.json(0, &["show", &id])["status"], "completed");
    assert_eq!(here.json(0, &["verify"])["violations"], serde_json::json!([]));
}

#[test]
fn a_step_that_loses_its_lease_once_too_often_fails_and_says_so() {
    // Five lost leases are made good; the sixth is not.
    let (here, mut child, _lines) = patient(&[]);
    for _ in 0..5 {
        child.kill().unwrap();
        child.wait().unwrap();
        child = resume(&here, &["work", "--until-idle"]).0;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(here.flowline(&["work", "--until-idle"]).exit, 0);
    here.write("go", "");
    let id = find(&here, "k").unwrap();
    let log = Log::read(&here, &id);
    let failed = log.0.iter().find(|event| event["type"] == "step.failed").unwrap();
    assert_eq!((&failed["data"]["code"], &failed["attempt"]), (&"lease_lost".into(), &6.into()));
    assert_eq!(here.json(0, &["show", &id])["status"], "failed");
    assert_eq!(here.json(0, &["verify"])["violations"], serde_json::json!([]));
}
