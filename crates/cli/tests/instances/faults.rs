//! Instances, connections and servers that fail under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use flowline_check::History;

use crate::instances::fleet::Fleet;
use crate::instances::proxy::Proxy;
use crate::kit::client::Client;
use crate::kit::dice::{Dice, seed, soaking};
use crate::kit::dump::Dump;
use crate::kit::server::{Kind, Place, Server};
use crate::kit::silence::{self, now};
use crate::kit::wait_for;

/// Short, so that what a fault left behind is taken up soon.
const LEASE: Duration = Duration::from_secs(2);
const FLAGS: &[&str] = &["--lease", "2s", "--slots", "8", "--drain", "1s"];
/// After a fault has ended, every run gets on within this time.
const BOUND: Duration = Duration::from_secs(4);
/// Far beyond the bound: a machine may be busy with other things.
const END: Duration = Duration::from_secs(90);
/// Who starts runs meanwhile, and how many of its runs each lets be under way.
const CLIENTS: usize = 3;
const WINDOW: usize = 4;

/// How many of each fault.
#[derive(Debug, Clone, Copy)]
struct Faults {
    kills: u64,
    pauses: u64,
    restarts: u64,
    /// Of connections: closed, answers lost, late, silent for a while; one kind after the other.
    cuts: u64,
}

pub fn three_instances_under_kills_pauses_restarts_and_cuts_lose_and_double_nothing(kind: Kind) {
    let faults = match soaking() {
        true => Faults { kills: 200, pauses: 20, restarts: 30, cuts: 100 },
        false => Faults { kills: 6, pauses: 1, restarts: 2, cuts: 8 },
    };
    let mut server = Server::start(kind);
    let fleet = Fleet::new(server.place(), &[FLAGS; 3]);
    let proxies: Vec<Proxy> = (0..CLIENTS).map(|_| Proxy::before(&fleet.place.address)).collect();
    let (done, history) = (AtomicBool::new(false), Mutex::new(History::default()));
    let began = Instant::now();
    let away = thread::scope(|scope| {
        let (opened, open) = mpsc::channel();
        for (number, proxy) in proxies.iter().enumerate() {
            let (fleet, done, history, opened) = (&fleet, &done, &history, opened.clone());
            scope.spawn(move || {
                let mut client = Client::new(kind, &fleet.place.by(proxy.port));
                opened.send(()).unwrap();
                client.keep_busy(&number.to_string(), WINDOW, done);
                history.lock().unwrap().operations.append(&mut client.history.operations);
            });
        }
        // What opens a store may say that it's away: faults begin once all are at work.
        proxies.iter().for_each(|_| open.recv_timeout(Duration::from_secs(60)).unwrap());
        let away = suffer(&fleet, &mut server, &proxies, faults);
        done.store(true, Ordering::Relaxed);
        away
    });
    let took = began.elapsed();
    let mut client = fleet.client();
    client.history = history.into_inner().unwrap();
    // Whoever was not told that a run was started has not approved it.
    let dump = client.ask(async |store| Dump::of(store).await.unwrap());
    dump.runs.keys().for_each(|key| client.approve(&key.run));
    fleet.revive();
    fleet.settle(&client, END);
    let dump = fleet.check(&client, &client.history);
    report(kind, faults, took, &away, &client, &dump);
}

/// All faults in an order of chance. Gives the times at which the server was away, for nobody can get on then.
fn suffer(fleet: &Fleet, server: &mut Server, clients: &[Proxy], faults: Faults) -> Vec<(i64, i64)> {
    let mut dice = Dice(seed());
    let Faults { mut kills, mut pauses, mut restarts, mut cuts } = faults;
    let mut away = Vec::new();
    while kills + pauses + restarts + cuts > 0 {
        thread::sleep(dice.between(Duration::from_millis(50), Duration::from_millis(300)));
        fleet.revive();
        let instance = dice.roll(3) as usize;
        let fault = dice.roll(kills + pauses + restarts + cuts);
        if fault < kills {
            fleet.kill(instance);
            kills -= 1;
        } else if fault < kills + pauses {
            fleet.signal(instance, "STOP");
            thread::sleep(LEASE + Duration::from_millis(500));
            fleet.signal(instance, "CONT");
            pauses -= 1;
        } else if fault < kills + pauses + restarts {
            let from = now();
            server.restart();
            away.push((from, now()));
            restarts -= 1;
        } else {
            // One in four hits a client.
            let proxy = match dice.one_in(4) {
                true => &clients[dice.roll(CLIENTS as u64) as usize],
                false => &fleet.instances[instance].proxy,
            };
            disturb(proxy, cuts % 4);
            cuts -= 1;
        }
    }
    away
}

fn disturb(proxy: &Proxy, how: u64) {
    match how {
        0 => proxy.cut(),
        1 => proxy.lose_answers(Duration::from_millis(150)),
        2 => {
            proxy.delay(Duration::from_millis(100));
            thread::sleep(Duration::from_millis(500));
            proxy.delay(Duration::ZERO);
        }
        _ => {
            proxy.stall(true);
            thread::sleep(Duration::from_millis(700));
            proxy.stall(false);
        }
    }
}

fn report(kind: Kind, faults: Faults, took: Duration, away: &[(i64, i64)], client: &Client, dump: &Dump) {
    let of = |word: &str| {
        let events = dump.runs.values().flat_map(|run| &run.events);
        events
            .filter(|event| {
                event.kind.as_str() == word
                    || event.data.as_ref().is_some_and(|data| data.get().contains(word))
            })
            .count()
    };
    let lost = of("\"cause\":\"lease_lost\"");
    let told =
        |outcome| client.history.operations.iter().filter(|operation| operation.outcome == outcome).count();
    let silence = dump.runs.values().map(|run| silence::longest(&run.events, away)).max().unwrap_or_default();
    println!(
        "{kind:?}: 3 instances, {} kills, {} pauses, {} restarts, {} cuts in {:.0} s: {} requests acknowledged, {} without \
         an answer, {} runs, {} attempts of which {lost} were lost, {} steps failed by that; longest silence {silence:?}",
        faults.kills,
        faults.pauses,
        faults.restarts,
        faults.cuts,
        took.as_secs_f64(),
        told(flowline_check::ClientReply::Acknowledged),
        told(flowline_check::ClientReply::Unknown),
        dump.runs.len(),
        of("step.started"),
        of("step.failed"),
    );
    assert!(lost > 0, "the faults missed the steps");
    // A machine that does other things may be late; one that is asked to show it may not.
    assert!(!soaking() || silence <= BOUND, "nothing happened to a run for {silence:?}");
}

/// Starts diamonds, each asked for until it is acknowledged.
fn start(client: &mut Client, numbers: std::ops::Range<usize>) {
    for number in numbers {
        wait_for("the start is acknowledged", || client.start("diamond", &format!("run-{number}")).is_some());
    }
}

/// Waits for the end, looks at everything, and that each of so many runs completed.
fn finish(fleet: &Fleet, client: &Client, runs: usize) {
    fleet.settle(client, END);
    let dump = fleet.check(client, &client.history);
    let completed = dump.runs.values().filter(|run| run.row.status.as_str() == "completed").count();
    assert_eq!((completed, dump.runs.len()), (runs, runs));
    fleet.assert_alive();
}

pub fn an_instance_that_is_cut_off_comes_back_while_others_go_on(kind: Kind) {
    let fleet = Fleet::new(Place::shared(kind), &[FLAGS; 3]);
    let mut client = fleet.client();
    start(&mut client, 0..5);
    fleet.instances[0].proxy.isolate(true);
    start(&mut client, 5..10);
    finish(&fleet, &client, 10);
    // Back without a restart: alone it must be able to do the rest.
    fleet.instances[0].proxy.isolate(false);
    fleet.instances[1..].iter().for_each(|other| other.proxy.isolate(true));
    start(&mut client, 10..15);
    finish(&fleet, &client, 15);
}

pub fn a_server_that_is_away_for_longer_than_the_lease_is_waited_for(kind: Kind) {
    let mut server = Server::start(kind);
    let fleet = Fleet::new(server.place(), &[FLAGS; 2]);
    let mut client = fleet.client();
    start(&mut client, 0..5);
    server.pause(true);
    thread::sleep(LEASE + Duration::from_secs(1));
    server.pause(false);
    start(&mut client, 5..10);
    server.restart();
    start(&mut client, 10..15);
    finish(&fleet, &client, 15);
}

pub fn a_half_open_connection_costs_an_instance_only_its_leases(kind: Kind) {
    let fleet = Fleet::new(Place::shared(kind), &[FLAGS; 2]);
    let mut client = fleet.client();
    start(&mut client, 0..10);
    fleet.instances[0].proxy.stall(true);
    fleet.settle(&client, END);
    // What it had sent arrives late, and must change nothing.
    fleet.instances[0].proxy.stall(false);
    fleet.instances[1].proxy.isolate(true);
    start(&mut client, 10..15);
    finish(&fleet, &client, 15);
}
