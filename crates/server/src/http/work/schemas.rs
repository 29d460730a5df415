//! The schemas of what remote workers and the server say to each other.

use serde_json::{Value, json};

use super::{LEASES, LINES, OUTCOMES};
use crate::http::schemas::{any, count, flag, list, map, maybe, object, one_of, status, text, time};

pub fn schemas() -> Value {
    let lease = || text("Lease, as the claim returned it.");
    let claim = || {
        object(
            "What a worker can run.",
            json!({
                "worker": text("Name of the worker."),
                "queues": { "type": "array", "minItems": 1, "maxItems": 100, "items": { "type": "string" } },
                "limit?": { "type": "integer", "minimum": 0, "maximum": u32::MAX, "description": "Maximum number of jobs, up to 100; 1 by default." },
                "waitMs?": { "type": "integer", "minimum": 0, "description": "How long to wait for the first job, in milliseconds, up to 25000; 20000 by default." },
                "withState?": flag("Whether to include the key-value state of the runs."),
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
            "An attempt for a worker to run.",
            json!({
                "lease": text("Identifies the attempt in everything that the worker reports."), "runId": text(""), "flowName": text(""),
                "tenant": text(""), "stepName": text(""), "stepId": text(""), "attempt": count("1, 2, 3 …"),
                "idempotencyKey": text("The same for every attempt of this step in this run."), "queue": text(""),
                "expires": time("When the lease expires unless it's acknowledged."),
                "deadline?": time("When the attempt fails with `timeout`."), "timeoutMs?": count("Time from the claim to the deadline."),
                "state?": map("Key-value state of the run, if requested.", any("")),
                "stateOmitted?": flag("Whether the state was left out because it's too large."),
                "traceparent": text("W3C Trace Context."), "input": any("Input of the step."),
            }),
        )
    };
    let outcome = object(
        "How an attempt ended: one of `complete` and `fail`.",
        json!({
            "lease": lease(),
            "complete?": { "oneOf": [{ "type": "null" }, object("It succeeded.", json!({
                "result?": any(""),
                "emits?": list("Events to emit with it.", object("", json!({ "name": text(""), "payload?": any("") }))),
            }))] },
            "fail?": { "oneOf": [{ "type": "null" }, object("It failed.", json!({
                "error": text(""), "code?": maybe(text("Error code, for `only` and `except` of the step's retry policy.")), "stack?": maybe(text("")),
                "retry?": one_of("`policy` by default.", &["policy", "never"]),
                "afterMs?": maybe(count("Delay before the next attempt, within the step's retry policy.")),
            }))] },
        }),
    );
    let reported = object(
        "Result for one outcome.",
        json!({
            "status": json!({ "type": "integer", "description": "HTTP status that this outcome alone would get." }),
            "applied?": flag("With 200: false if it was already in the log."), "runStatus?": status(),
            "code?": text("With any other status: the problem code."), "detail?": text(""),
        }),
    );
    let line = object(
        "One of `log` and `state`.",
        json!({
            "log?": { "type": ["object", "null"], "description": "`level`, `message`, and any other fields to keep." },
            "state?": { "oneOf": [{ "type": "null" }, object("One of `set`, `delete` and `get`, on key-value state.", json!({
                "set?": maybe(text("Key to write.")), "delete?": maybe(text("Key to delete.")),
                "get?": maybe(text("Key to read; up to 16 per request.")), "value?": any("Value for `set`; null by default."),
                "ttlMs?": { "type": ["integer", "null"], "minimum": 1, "description": "For `set`: delete the value after this time." },
                "scope?": maybe(text("`run`, `flow`, `tenant` or any other name; `run` by default.")),
            }))] },
        }),
    );
    json!({
        "WorkClaim": claim(),
        "WorkClaimed": object("Jobs for a worker.", json!({ "jobs": list("", job()), "times": times() })),
        "WorkHeartbeat": object("Leases of a worker.", json!({
            "leases": { "type": "array", "maxItems": LEASES, "items": { "type": "string" } },
        })),
        "WorkBeaten": object("State of the leases.", json!({
            "leases": list("", object("", json!({ "lease": lease(), "state": one_of("", &["held", "cancelled", "lost", "timedOut"]) }))),
            "times": times(),
        })),
        "WorkComplete": object("Outcomes of attempts.", json!({
            "outcomes": { "type": "array", "maxItems": OUTCOMES, "items": outcome },
            "claim?": { "oneOf": [{ "type": "null" }, claim()] },
        })),
        "WorkCompleted": object("Results of the outcomes, and the next jobs.", json!({
            "results": list("", reported), "jobs": list("", job()), "times": times(),
        })),
        "WorkAppend": object("Lines of an attempt.", json!({
            "lease": lease(), "fromLine?": { "type": "integer", "minimum": 0, "maximum": u32::MAX, "description": "0 by default." },
            "lines": { "type": "array", "maxItems": LINES, "items": line },
        })),
        "WorkAppended": object("", json!({
            "lines": count("Number of the attempt's lines in the log."),
            "found?": list("What each `get` found, in order.", object("", json!({
                "get": text("The key."), "scope": text(""), "value?": any("Absent if the key isn't set."),
            }))),
        })),
        "WorkEmit": object("An event.", json!({ "lease": lease(), "name": text(""), "payload?": any("") })),
        "WorkEmitted": object("", json!({ "applied": flag("False if it was already emitted."), "runStatus": status() })),
    })
}
