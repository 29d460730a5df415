//! The schemas of what remote workers and the server say to each other.

use serde_json::{Value, json};

use super::{LEASES, LINES, OUTCOMES};
use crate::http::schemas::{any, count, flag, list, map, maybe, object, one_of, status, text, time};

pub fn schemas() -> Value {
    let lease = || text("As the claim gave it.");
    let claim = || {
        object(
            "What a worker would take.",
            json!({
                "worker": text("Its own name."),
                "queues": { "type": "array", "minItems": 1, "maxItems": 100, "items": { "type": "string" } },
                "limit?": { "type": "integer", "minimum": 0, "maximum": u32::MAX, "description": "At most so many jobs, up to 100; 1 where it is left out." },
                "waitMs?": { "type": "integer", "minimum": 0, "description": "How long to wait for the first, up to 25000; 20000 where it is left out." },
                "withState?": flag("Whether jobs come with the key-value state of their runs."),
            }),
        )
    };
    let times = || {
        object(
            "How long leases last, in milliseconds.",
            json!({
                "leaseMs": count("After a heartbeat."), "heartbeatMs": count("How often to send one."),
                "acknowledgeMs": count("After a claim, until the first heartbeat."),
            }),
        )
    };
    let job = || {
        object(
            "An attempt that a worker was given.",
            json!({
                "lease": text("By which the worker names it in all that it reports."), "runId": text(""), "flowName": text(""),
                "tenant": text(""), "stepName": text(""), "stepId": text(""), "attempt": count("1, 2, 3 …"),
                "idempotencyKey": text("The same for every attempt of this step in this run."), "queue": text(""),
                "expires": time("The lease ends then, unless it is acknowledged."),
                "deadline?": time("The attempt fails then with `timeout`."), "timeoutMs?": count("From the claim to the deadline."),
                "state?": map("Key-value state of the run, where it was asked for.", any("")),
                "stateOmitted?": flag("It was too large to come along."),
                "traceparent": text("W3C Trace Context."), "input": any("As the step subscribes to it."),
            }),
        )
    };
    let outcome = object(
        "How an attempt ended: one of `complete` and `fail`.",
        json!({
            "lease": lease(),
            "complete?": { "oneOf": [{ "type": "null" }, object("It succeeded.", json!({
                "result?": any(""),
                "emits?": list("Published with it.", object("", json!({ "name": text(""), "payload?": any("") }))),
            }))] },
            "fail?": { "oneOf": [{ "type": "null" }, object("It failed.", json!({
                "error": text(""), "code?": maybe(text("For `only` and `except` of the step's retry policy.")), "stack?": maybe(text("")),
                "retry?": one_of("`policy` where it is left out.", &["policy", "never"]),
                "afterMs?": maybe(count("The next try after this long, within the step's policy.")),
            }))] },
        }),
    );
    let reported = object(
        "What became of an outcome.",
        json!({
            "status": json!({ "type": "integer", "description": "As the answer would have for this outcome alone." }),
            "applied?": flag("Of 200: false where it was in the log already."), "runStatus?": status(),
            "code?": text("Of anything else."), "detail?": text(""),
        }),
    );
    let line = object(
        "One of `log` and `state`.",
        json!({
            "log?": { "type": ["object", "null"], "description": "`level`, `message`, and whatever else is to be kept." },
            "state?": { "oneOf": [{ "type": "null" }, object("One of `set`, `delete` and `get`, on key-value state.", json!({
                "set?": maybe(text("The key to write.")), "delete?": maybe(text("The key to remove.")),
                "get?": maybe(text("The key to read; up to 16 in a request.")), "value?": any("Of `set`; null where it is left out."),
                "ttlMs?": { "type": ["integer", "null"], "minimum": 1, "description": "Of `set`: the value is gone after this long." },
                "scope?": maybe(text("`run`, `flow`, `tenant` or any other name; `run` where it is left out.")),
            }))] },
        }),
    );
    json!({
        "WorkClaim": claim(),
        "WorkClaimed": object("Jobs for a worker.", json!({ "jobs": list("", job()), "times": times() })),
        "WorkHeartbeat": object("Leases of a worker.", json!({
            "leases": { "type": "array", "maxItems": LEASES, "items": { "type": "string" } },
        })),
        "WorkBeaten": object("What became of leases.", json!({
            "leases": list("", object("", json!({ "lease": lease(), "state": one_of("", &["held", "cancelled", "lost", "timedOut"]) }))),
            "times": times(),
        })),
        "WorkComplete": object("Outcomes of attempts.", json!({
            "outcomes": { "type": "array", "maxItems": OUTCOMES, "items": outcome },
            "claim?": { "oneOf": [{ "type": "null" }, claim()] },
        })),
        "WorkCompleted": object("What became of outcomes, and the next jobs.", json!({
            "results": list("", reported), "jobs": list("", job()), "times": times(),
        })),
        "WorkAppend": object("Lines of an attempt.", json!({
            "lease": lease(), "fromLine?": { "type": "integer", "minimum": 0, "maximum": u32::MAX, "description": "0 where it is left out." },
            "lines": { "type": "array", "maxItems": LINES, "items": line },
        })),
        "WorkAppended": object("", json!({
            "lines": count("Lines of the attempt that are in the log now."),
            "found?": list("What each `get` found, in order.", object("", json!({
                "get": text("The key."), "scope": text(""), "value?": any("Not there where the key is not set."),
            }))),
        })),
        "WorkEmit": object("An event.", json!({ "lease": lease(), "name": text(""), "payload?": any("") })),
        "WorkEmitted": object("", json!({ "applied": flag("False where it was published already."), "runStatus": status() })),
    })
}
