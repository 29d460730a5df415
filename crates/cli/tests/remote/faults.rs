//! Three servers on one store and many workers, both killed and stopped at any moment; then the checker.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flowline_check::History;

use crate::kit::client::Client;
use crate::kit::crowd::{Running, Server};
use crate::kit::dice::{Dice, seed, soaking};
use crate::kit::dump::Dump;
use crate::kit::ledger;
use crate::kit::place::Here;
use crate::kit::server::{Kind, Place};

/// A diamond, a step that fails at first, one that emits in its middle, and an end that waits for an event from outside.
const FLOW: &str = r#"
flow: hit
accepts: { approved: }
steps:
  order: { worker: depot, returns: ordered }
  charge: { subscribes: [ordered], worker: depot, returns: charged, retry: { attempts: 9, delay: 10ms } }
  reserve: { subscribes: [ordered], worker: depot, emits: [reserved] }
  ship: { subscribes: [charged, reserved], worker: depot, returns: shipped }
  close: { subscribes: [shipped, approved], worker: depot }
"#;

/// Tells a ledger outside the store what it does.
const JOB: &str = r#"
say() { echo "$FLOWLINE_RUN_ID $FLOWLINE_STEP $FLOWLINE_ATTEMPT $1" >> ledger; }
say began
case $FLOWLINE_STEP in
  charge) if [ "$FLOWLINE_ATTEMPT" -lt 2 ]; then say failed; exit 1; fi ;;
  reserve) say reserved; echo '{"emit_now": {"name": "reserved", "payload": 1}}' ;;
esac
sleep 0.05
say done
"#;

const LEASE: Duration = Duration::from_secs(2);
const SERVE: &[&str] = &["--lease", "2s", "--drain", "1s"];
/// Far beyond what is to be expected: a machine may be busy with other things.
const END: Duration = Duration::from_secs(120);
const SERVERS: usize = 3;
/// Runs that are under way at once.
const WINDOW: usize = 12;

struct Size {
    workers: usize,
    kills: u64,
    pauses: u64,
}

#[test]
fn servers_and_workers_that_are_killed_lose_and_double_nothing_on_redis() {
    lose_and_double_nothing(Kind::Redis);
}

#[test]
fn servers_and_workers_that_are_killed_lose_and_double_nothing_on_postgres() {
    lose_and_double_nothing(Kind::Postgres);
}

fn lose_and_double_nothing(kind: Kind) {
    let size = match soaking() {
        true => Size { workers: 20, kills: 100, pauses: 20 },
        false => Size { workers: 6, kills: 8, pauses: 2 },
    };
    let here = Here::new();
    for (name, text) in [("hit.yaml", FLOW), ("job.sh", JOB), ("ledger", "")] {
        here.write(name, text);
    }
    let place = Place::shared(kind);
    let mut client = Client::new(kind, &place.url);
    client.learn(&here, "hit.yaml");
    let mut servers: Vec<Server> =
        (0..SERVERS).map(|number| Server::start(&here, number, &place.url, SERVE)).collect();
    let urls = servers.iter().map(Server::url).collect::<Vec<_>>().join(",");
    let mut workers: Vec<Running> = (0..size.workers).map(|number| worker(&here, number, &urls)).collect();
    let (done, history) = (AtomicBool::new(false), Mutex::new(History::default()));
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::new(kind, &place.url);
            client.keep_busy("run", WINDOW, &done);
            history.lock().unwrap().operations.append(&mut client.history.operations);
        });
        suffer(&here, &mut servers, &mut workers, &size);
        done.store(true, Ordering::Relaxed);
    });
    client.history = history.into_inner().unwrap();
    let dump = client.ask(async |store| Dump::of(store).await.unwrap());
    dump.runs.keys().for_each(|key| client.approve(&key.run));
    settle(&client);
    let dump = client.ask(async |store| Dump::of(store).await.unwrap());
    dump.assert_right(&client.history, &ledger::read_in(&here, "depot"));
    assert!(dump.runs.values().all(|run| run.row.status.is_terminal()));
    let count = |kind: &str| {
        dump.runs.values().flat_map(|run| &run.events).filter(|e| e.kind.as_str() == kind).count()
    };
    println!(
        "{kind:?}: {} runs, {} attempts, {} retries in {:.1?}, through {} kills and {} pauses",
        dump.runs.len(),
        count("step.started"),
        count("step.retry"),
        began.elapsed(),
        size.kills,
        size.pauses
    );
}

fn worker(here: &Here, number: usize, urls: &str) -> Running {
    let (name, log) = (format!("w{number}"), format!("worker-{number}"));
    let arguments = [
        "worker", "--server", urls, "--queue", "depot", "--slots", "2", "--name", &name, "--", "sh", "job.sh",
    ];
    Running::start(here, &log, &arguments)
}

fn suffer(here: &Here, servers: &mut [Server], workers: &mut [Running], size: &Size) {
    let mut dice = Dice(seed());
    let (mut kills, mut pauses) = (size.kills, size.pauses);
    while kills + pauses > 0 {
        thread::sleep(dice.between(Duration::from_millis(100), Duration::from_millis(500)));
        servers.iter_mut().for_each(|server| server.running.revive(here));
        workers.iter_mut().for_each(|worker| worker.revive(here));
        // Servers are fewer, and each of them matters more.
        let victim = match dice.one_in(3) {
            true => &mut servers[dice.roll(SERVERS as u64) as usize].running,
            false => &mut workers[dice.roll(size.workers as u64) as usize],
        };
        if dice.roll(kills + pauses) < kills {
            victim.kill(here);
            kills -= 1;
        } else {
            victim.signal("STOP");
            thread::sleep(LEASE + Duration::from_millis(500));
            victim.signal("CONT");
            pauses -= 1;
        }
    }
    servers.iter_mut().for_each(|server| server.running.revive(here));
    workers.iter_mut().for_each(|worker| worker.revive(here));
}

fn settle(client: &Client) {
    let until = Instant::now() + END;
    loop {
        let counters = client.ask(async |store| store.counters().await).unwrap();
        let live = counters.iter().filter(|counter| !counter.status.is_terminal());
        let left: u64 = live.map(|counter| counter.count).sum();
        if left == 0 {
            return;
        }
        assert!(Instant::now() < until, "{left} runs have not ended");
        thread::sleep(Duration::from_millis(50));
    }
}
