//! How events are taken in: durably, checked, once, in order.

use serde_json::{Value, json};

use crate::machines::site::{Kind, Site};

/// Every action notes that it ran, and what it was given.
const PARCEL: &str = r#"
machine: parcel
events: { pack: { type: object, required: [box] }, ship: , recall: }
context: { boxes: "0" }
states:
  open:
    exit: [seal]
    on:
      pack: { set: { boxes: "context.boxes + 1" }, actions: [note] }
      ship: { to: sent, role: [clerk], if: "context.boxes > 0", actions: [label] }
  sent: { entry: [tell], on: { recall: { to: open, role: boss } } }
actions:
  note: { command: [sh, note.sh] }
  seal: { command: [sh, note.sh] }
  label: { command: [sh, note.sh] }
  tell: { command: [sh, note.sh], after: [label] }
"#;

fn site(kind: Kind, instances: usize) -> Site {
    let site = Site::new(kind, instances);
    site.here.write("note.sh", "echo \"$FLOWLINE_STEP\" >> ledger\n");
    site.here.write("ledger", "");
    site.register(PARCEL);
    site
}

pub fn enqueueing_an_event_outlives_the_instance_that_took_it(kind: Kind) {
    let site = site(kind, 1);
    let run = site.begin("parcel");
    let events: Vec<String> =
        (0..5).map(|n| site.send(&run, json!({ "name": "pack", "payload": { "box": n } }))).collect();
    site.kill(0);
    site.start(0);
    for event in &events {
        assert_eq!(site.done(&run, event)["status"], "completed");
    }
    assert_eq!(site.get(&format!("/v1/runs/{run}"))["context"], json!({ "boxes": 5 }));
}

pub fn validation_is_at_the_door_and_again_at_the_turn(kind: Kind) {
    let site = site(kind, 1);
    let run = site.begin("parcel");
    let path = format!("/v1/runs/{run}/events");
    let refused = |body: Value| {
        let reply = site.post(&path, body);
        (reply.status, reply.code())
    };
    assert_eq!(refused(json!({ "name": "burn" })), (404, "no-such-event".to_owned()));
    assert_eq!(refused(json!({ "name": "pack", "payload": {} })), (400, "schema".to_owned()));
    assert_eq!(refused(json!({ "name": "ship" })), (403, "role".to_owned()));
    assert_eq!(site.log(&run, "event.received").len(), 0, "what is refused is not in the log");
    // Empty now, but something is packed before its turn comes.
    let packed = site.send(&run, json!({ "name": "pack", "payload": { "box": 1 } }));
    let shipped = site.send(&run, json!({ "name": "ship", "roles": ["clerk"] }));
    // In order now, but not any more when its turn comes.
    let late = site.send(&run, json!({ "name": "pack", "payload": { "box": 2 } }));
    let stranger = site.send(&run, json!({ "name": "recall", "roles": ["boss"] }));
    assert_eq!(site.done(&run, &packed)["status"], "completed");
    assert_eq!(site.done(&run, &shipped)["result"]["currentState"], "sent");
    let turned_down = site.done(&run, &late);
    assert_eq!(
        (&turned_down["status"], &turned_down["code"], &turned_down["accepts"]),
        (&json!("failed"), &json!("wrong_state"), &json!(["recall"]))
    );
    assert_eq!(site.done(&run, &stranger)["result"]["currentState"], "open");
    let waited = site.post(&format!("{path}?wait=60s"), json!({ "name": "recall", "roles": ["boss"] }));
    assert_eq!((waited.status, waited.code().as_str()), (409, "event-rejected"));
    assert_eq!(waited.json()["accepts"], json!(["pack", "ship"]));
}

pub fn idempotency_one_key_is_one_event_however_many_send_it(kind: Kind) {
    let site = site(kind, 3);
    let run = site.begin("parcel");
    let body = json!({ "name": "pack", "payload": { "box": 1 }, "idempotencyKey": "k1" });
    let mut ids: Vec<String> = std::thread::scope(|scope| {
        let send = |number: usize| {
            let (site, run, body) = (&site, &run, body.clone());
            scope.spawn(move || {
                let reply = site.post_at(number % site.instances(), &format!("/v1/runs/{run}/events"), body);
                assert_eq!(reply.status, 202, "{reply:?}");
                reply.json()["eventId"].as_str().unwrap().to_owned()
            })
        };
        let sending: Vec<_> = (0..9).map(send).collect();
        sending.into_iter().map(|sent| sent.join().unwrap()).collect()
    });
    ids.dedup();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(site.done(&run, &ids[0])["result"]["actionsExecuted"], json!(["note"]));
    site.kill(0);
    site.start(0);
    let again = site.post(&format!("/v1/runs/{run}/events"), body);
    assert_eq!(
        (again.json()["eventId"].as_str().unwrap(), &again.json()["changed"]),
        (ids[0].as_str(), &json!(false))
    );
    assert_eq!(site.log(&run, "event.received").len(), 1);
    assert_eq!(site.get(&format!("/v1/runs/{run}"))["context"], json!({ "boxes": 1 }));
    let other = site.begin("parcel");
    for (run, name) in [(&other, "pack"), (&run, "ship")] {
        let body =
            json!({ "name": name, "payload": { "box": 1 }, "idempotencyKey": "k1", "roles": ["clerk"] });
        assert_eq!(site.post(&format!("/v1/runs/{run}/events"), body).code(), "key-conflict");
    }
}

pub fn processing_keeps_the_order_of_events_and_of_their_actions(kind: Kind) {
    let site = site(kind, 3);
    let run = site.begin("parcel");
    let pack = |n: u32| site.send(&run, json!({ "name": "pack", "payload": { "box": n } }));
    let events =
        [pack(1), pack(2), site.send(&run, json!({ "name": "ship", "roles": ["clerk"], "userId": "ada" }))];
    let receipts = events.each_ref().map(|event| site.done(&run, event));
    assert_eq!(
        receipts[2]["result"],
        json!({ "previousState": "open", "currentState": "sent", "actionsExecuted": ["seal", "label", "tell"] })
    );
    assert_eq!(receipts[2]["userId"], "ada");
    let ledger = std::fs::read_to_string(site.here.path("ledger")).unwrap();
    assert_eq!(ledger.lines().collect::<Vec<_>>(), ["note", "note", "seal", "label", "tell"]);
    for pair in receipts.windows(2) {
        assert!(pair[0]["completedAt"].as_str() <= pair[1]["startedAt"].as_str(), "one at a time: {pair:?}");
    }
    let last = site.instances() - 1;
    let listed = site.get_at(last, &format!("/v1/runs/{run}/receipts"));
    assert_eq!(listed["items"].as_array().unwrap().len(), 3, "every instance tells of them");
    let moved: Vec<Value> =
        site.log(&run, "state.changed").iter().map(|data| data["number"].clone()).collect();
    assert_eq!(moved, [Value::Null, json!(1), json!(2), json!(3)]);
}
