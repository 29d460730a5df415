//! Many processes send many events to many runs, and are killed, as are the instances: what was accepted is applied once
//! and in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::dice::{Dice, seed, soaking};
use crate::kit::wait_for;
use crate::machines::site::{Kind, Site};

const SENDERS: u64 = 10;

/// Takes every event, and remembers what it took in a way that depends on the order. One in ten sets off an action.
const TALLY: &str = r#"
machine: tally
events: { hit: { type: object, required: [n] } }
context: { count: "0", chain: "7" }
states:
  even:
    on:
      hit:
        - { if: "payload.n % 10 == 0", to: odd, set: { count: "context.count + 1", chain: "(context.chain * 31 + payload.n) % 1000003" }, actions: [note] }
        - { to: odd, set: { count: "context.count + 1", chain: "(context.chain * 31 + payload.n) % 1000003" } }
  odd:
    on:
      hit: { to: even, set: { count: "context.count + 1", chain: "(context.chain * 31 + payload.n) % 1000003" } }
actions:
  note: { command: ["true"], on_failure: continue }
"#;

#[derive(Debug, Clone, Copy)]
struct Size {
    events: u64,
    runs: u64,
    /// Of instances.
    kills: u64,
}

/// An event that a sender was told was taken.
#[derive(Debug)]
struct Taken {
    sender: u64,
    n: u64,
    run: usize,
    id: String,
}

pub fn every_accepted_event_is_applied_once_and_in_order_whoever_is_killed(kind: Kind) {
    let size = match soaking() {
        true => Size { events: 10_000, runs: 100, kills: 60 },
        false => Size { events: 400, runs: 10, kills: 4 },
    };
    let site = Site::new(kind, 3);
    site.register(TALLY);
    let runs: Vec<String> = (0..size.runs).map(|_| site.begin("tally")).collect();
    let seed = seed();
    let (sent, killed) = (AtomicU64::new(0), AtomicU32::new(0));
    let taken: Vec<Taken> = thread::scope(|scope| {
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let (site, runs, counts) = (&site, &runs, (&sent, &killed));
                scope.spawn(move || {
                    send(site, runs, sender, size.events / SENDERS, Dice(seed ^ sender), counts)
                })
            })
            .collect();
        kill_instances(&site, size, Dice(seed), &sent);
        senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
    });
    assert_eq!(taken.len() as u64, size.events, "every sender got through in the end");
    wait_for("all are done with", || {
        ["pending", "processing"]
            .iter()
            .all(|status| site.get(&format!("/v1/receipts?status={status}"))["items"] == json!([]))
    });
    let mut actions = 0;
    for (number, run) in runs.iter().enumerate() {
        actions += check(&site, run, taken.iter().filter(|taken| taken.run == number));
    }
    assert_eq!(site.post("/v1/verify", json!({})).json()["violations"], json!([]), "by the checker");
    println!(
        "{kind:?}: {} events to {} runs, {} senders and {} instances killed: {actions} actions asked for",
        size.events,
        size.runs,
        killed.into_inner(),
        size.kills
    );
}

/// Sends events one after another, each by a process of its own, until it is told that it was taken. One process in eight
/// is killed at some moment, and the event sent again under its key.
fn send(
    site: &Site,
    runs: &[String],
    sender: u64,
    events: u64,
    mut dice: Dice,
    (sent, killed): (&AtomicU64, &AtomicU32),
) -> Vec<Taken> {
    let servers = site.servers();
    let mut taken = Vec::new();
    for n in 0..events {
        let run = dice.roll(runs.len() as u64) as usize;
        let (payload, key) = (json!({ "sender": sender, "n": n }).to_string(), format!("{sender}-{n}"));
        let words =
            ["send", &runs[run], "hit", "--payload", &payload, "--key", &key, "--json", "--server", &servers];
        loop {
            let mut child = site.here.spawn(&words);
            if dice.one_in(8) {
                thread::sleep(dice.between(Duration::ZERO, Duration::from_millis(60)));
                let _ = child.kill();
            }
            let output = child.wait_with_output().unwrap();
            let answer = serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default();
            if let Some(id) = answer["eventId"].as_str() {
                taken.push(Taken { sender, n, run, id: id.to_owned() });
                sent.fetch_add(1, Ordering::Relaxed);
                break;
            }
            match output.status.code() {
                None => drop(killed.fetch_add(1, Ordering::Relaxed)),
                // The instance that was asked is not there, or does not answer.
                Some(3) => thread::sleep(Duration::from_millis(50)),
                code => panic!("{code:?}: {}", String::from_utf8_lossy(&output.stderr)),
            }
        }
    }
    taken
}

/// Kills an instance now and then while events are sent, and starts it again. How far the senders are says when, so that
/// it happens in their midst on a fast machine too.
fn kill_instances(site: &Site, size: Size, mut dice: Dice, sent: &AtomicU64) {
    for kill in 0..size.kills {
        let from = size.events * kill / (2 * size.kills);
        while sent.load(Ordering::Relaxed) < from {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(dice.between(Duration::ZERO, Duration::from_millis(100)));
        assert!(sent.load(Ordering::Relaxed) < size.events, "the senders were done before the kills");
        let instance = dice.roll(site.instances() as u64) as usize;
        site.kill(instance);
        thread::sleep(dice.between(Duration::ZERO, Duration::from_millis(200)));
        site.start(instance);
    }
}

/// Holds a run against what its senders were told, and its state against its log. How many actions it asked for.
fn check<'a>(site: &Site, run: &str, taken: impl Iterator<Item = &'a Taken>) -> usize {
    let received = site.log(run, "event.received");
    let moved: Vec<Value> =
        site.log(run, "state.changed").into_iter().filter(|data| !data["eventId"].is_null()).collect();
    assert_eq!(site.log(run, "event.rejected"), Vec::<Value>::new(), "{run}");
    let ids = |events: &[Value]| -> Vec<String> {
        events.iter().map(|data| data["eventId"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&received), ids(&moved), "{run}: each was applied once, in the order that it came in");
    let told: BTreeMap<&str, &Taken> = taken.map(|taken| (taken.id.as_str(), taken)).collect();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut count, mut chain, mut actions) = (0u64, 7u64, 0);
    for event in &received {
        let id = event["eventId"].as_str().unwrap();
        let Taken { sender, n, .. } = told.get(id).unwrap_or_else(|| panic!("{run}: nobody sent {id}"));
        assert_eq!(
            (&event["payload"]["sender"], &event["payload"]["n"]),
            (&json!(sender), &json!(n)),
            "{run}"
        );
        let before = last.insert(*sender, *n);
        assert!(before < Some(*n), "{run}: sender {sender} sent {n} after {before:?}");
        actions += usize::from(n % 10 == 0 && count % 2 == 0);
        (count, chain) = (count + 1, (chain * 31 + n) % 1_000_003);
    }
    assert_eq!(received.len(), told.len(), "{run}: what was taken is there");
    let shown = site.get(&format!("/v1/runs/{run}"));
    assert_eq!(shown["state"], if count % 2 == 0 { "even" } else { "odd" }, "{run}");
    assert_eq!(shown["context"], json!({ "count": count, "chain": chain }), "{run}: the state is the fold");
    actions
}
