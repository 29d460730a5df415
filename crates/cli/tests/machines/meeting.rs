//! What moves a machine beside its senders: time, over restarts, and other runs.

use serde_json::{Value, json};

use crate::kit::wait_for;
use crate::machines::site::{Kind, Site};

const PATIENT: &str = r#"
machine: patient
events: { go: }
states:
  here: { on: { go: gone }, after: { in: 3s, to: late, actions: [note] } }
  gone: { on: { go: here } }
  late: { on: { go: here } }
actions:
  note: { command: [sh, -c, 'echo "$FLOWLINE_RUN_ID" >> ledger'] }
"#;

fn restart_all(site: &Site) {
    (0..site.instances()).for_each(|instance| site.kill(instance));
    (0..site.instances()).for_each(|instance| site.start(instance));
}

pub fn timers_fire_once_and_on_time_whoever_was_killed_meanwhile(kind: Kind) {
    let site = Site::new(kind, 3);
    site.here.write("ledger", "");
    site.register(PATIENT);
    let runs: Vec<String> = (0..5).map(|_| site.begin("patient")).collect();
    restart_all(&site);
    let is_late = |run: &String| site.get(&format!("/v1/runs/{run}"))["state"] == "late";
    wait_for("all are late", || runs.iter().all(is_late));
    let idle = |run: &String| site.get(&format!("/v1/runs/{run}"))["status"] == "waiting";
    wait_for("what they asked for is done", || runs.iter().all(idle));
    for run in &runs {
        let (set, fired) = (site.events(run, "timer.set"), site.events(run, "timer.fired"));
        assert_eq!((set.len(), fired.len()), (1, 1), "{run}: {set:?} {fired:?}");
        assert!(fired[0]["ts"].as_str() >= set[0]["data"]["at"].as_str(), "{run}: not before its time");
    }
    let mut ledger: Vec<String> =
        std::fs::read_to_string(site.here.path("ledger")).unwrap().lines().map(str::to_owned).collect();
    ledger.sort();
    let mut runs = runs;
    runs.sort();
    assert_eq!(ledger, runs, "each did what it asks for once");
    assert_eq!(site.post("/v1/verify", json!({})).json()["violations"], json!([]));
}

pub fn a_timer_goes_in_the_commit_that_leaves_its_state(kind: Kind) {
    let site = Site::new(kind, 2);
    site.here.write("ledger", "");
    site.register(PATIENT);
    let left =
        site.post("/v1/flows/patient/events?wait=60s", json!({ "key": "k", "input": {}, "name": "go" }));
    assert_eq!(left.json()["receipt"]["result"]["currentState"], "gone", "{left:?}");
    let left = left.json()["runId"].as_str().unwrap().to_owned();
    // Its timer was set later: when it has fired, the time of the other one is over.
    let witness = site.begin("patient");
    restart_all(&site);
    wait_for("the time is over", || site.get(&format!("/v1/runs/{witness}"))["state"] == "late");
    let kinds = |kind: &str| site.log(&left, kind).len();
    assert_eq!((kinds("timer.set"), kinds("timer.cancelled"), kinds("timer.fired")), (1, 1, 0));
    assert_eq!(site.get(&format!("/v1/runs/{left}"))["state"], "gone");
}

const ORDER: &str = r#"
machine: order
events: { checkout: { type: object }, paid: }
states:
  cart: { on: { checkout: { to: paying, actions: [charge, book] } } }
  paying: { on: { paid: { to: done, set: { receipt: payload } } } }
  done: { final: true }
  broke: { final: failed }
actions:
  charge: { start: { flow: charge, input: { cents: "${input.payload.cents}" } }, on_error: broke }
  book: { start: { flow: book, input: { receipt: "${input.results.charge}" } }, after: [charge] }
"#;

const CHARGE: &str = r#"
flow: charge
output: results.bank
steps:
  bank: { command: [sh, bank.sh] }
"#;

const BOOK: &str = r#"
flow: book
input: { type: object, required: [receipt], properties: { receipt: { const: "bank-1900" } } }
accepts: { signed: }
steps:
  tell: { subscribes: signed, send: { run: "${input.signed.order}", event: paid, payload: "${input.signed.by}" } }
"#;

const SHOP: &str = r#"
flow: shop
steps:
  order: { send: { machine: order, key: "${input.order}", input: {}, event: checkout, payload: { cents: "${input.cents}" } } }
"#;

pub fn flows_and_machines_send_and_wait_for_each_other(kind: Kind) {
    let site = Site::new(kind, 2);
    site.here.write("bank.sh", "grep -q '\"cents\":0' && exit 1; echo '{\"result\": \"bank-1900\"}'\n");
    for definition in [CHARGE, BOOK, ORDER, SHOP] {
        site.register(definition);
    }
    let result = |run: &str| site.get(&format!("/v1/runs/{run}/result?wait=60s"));
    let place = |order: &str, cents: u32| {
        let input = json!({ "input": { "order": order, "cents": cents } });
        let shop = site.post("/v1/flows/shop/runs", input).json()["runId"].as_str().unwrap().to_owned();
        result(&shop)["result"]["order"]["runId"].as_str().unwrap().to_owned()
    };
    let paid = place("o-1", 1900);
    let books = || site.get("/v1/runs?flow=book")["items"].clone();
    wait_for("the order waits for its book", || books()[0]["status"] == "waiting");
    assert_eq!(site.get(&format!("/v1/runs/{paid}"))["state"], "paying", "its action is at work");
    let book = books()[0]["runId"].as_str().unwrap().to_owned();
    // A signal into a flow goes the way of events.
    let signed = site.post(
        &format!("/v1/runs/{book}/events"),
        json!({ "name": "signed", "payload": { "order": paid, "by": "ada" } }),
    );
    assert_eq!((signed.status, &signed.json()["changed"]), (200, &json!(true)), "{signed:?}");
    assert_eq!(result(&paid)["result"]["receipt"], "ada", "{:?}", result(&paid));
    let broke = place("o-2", 0);
    assert_eq!((&result(&broke)["status"], books()[1].clone()), (&json!("failed"), Value::Null));
    assert_eq!(site.get(&format!("/v1/runs/{broke}"))["state"], "broke");
}
