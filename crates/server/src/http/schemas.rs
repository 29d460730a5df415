//! The schemas of what the API takes and gives. Answers are closed (`additionalProperties: false`), so that the contract
//! tests notice a field that nobody wrote down.

use serde_json::{Map, Value, json};

use super::bulk::ACTS;
use super::codes;
use super::events::RECEIPT_STATUSES;
use super::route::Scope;
use super::run::EVENT_TYPES;
use super::runs::{BATCH, STATUSES};
use super::work;

/// `500ms`, `30s`, `1h30m`.
pub const DURATION: &str = "^([0-9]{1,6}(ms|s|m|h|d))+$";
/// NAME=VALUE.
pub const LABEL: &str = "^[^=]+=";

/// Every schema by name.
pub fn all() -> Map<String, Value> {
    let groups = [
        problems(),
        flows(),
        runs(),
        acts(),
        queues(),
        locks(),
        overview(),
        access(),
        workers(),
        work::schemas(),
    ];
    groups.into_iter().flat_map(|group| group.as_object().cloned().unwrap_or_default()).collect()
}

/// An object with these fields and no others; those that end in `?` may be left out.
pub fn object(about: &str, fields: Value) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, schema) in fields.as_object().cloned().unwrap_or_default() {
        let optional = name.strip_suffix('?');
        if optional.is_none() {
            required.push(name.clone());
        }
        properties.insert(optional.unwrap_or(&name).to_owned(), schema);
    }
    json!({
        "type": "object", "description": about, "properties": properties, "required": required,
        "additionalProperties": false,
    })
}

/// As [`object`], of what is taken: whatever may be left out may be null as well.
pub fn taken(about: &str, mut fields: Value) -> Value {
    for (name, schema) in fields.as_object_mut().into_iter().flatten() {
        if name.ends_with('?') {
            *schema = json!({ "anyOf": [schema, { "type": "null" }] });
        }
    }
    object(about, fields)
}

pub fn text(about: &str) -> Value {
    json!({ "type": "string", "description": about })
}

/// A stretch of time.
pub fn span(about: &str) -> Value {
    json!({ "type": "string", "description": about, "pattern": DURATION, "examples": ["30s"] })
}

pub fn count(about: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": about })
}

pub fn flag(about: &str) -> Value {
    json!({ "type": "boolean", "description": about })
}

pub fn time(about: &str) -> Value {
    json!({ "type": "string", "format": "date-time", "description": about })
}

pub fn any(about: &str) -> Value {
    json!({ "description": about })
}

pub fn maybe(mut schema: Value) -> Value {
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

pub fn list(about: &str, items: Value) -> Value {
    json!({ "type": "array", "description": about, "items": items })
}

pub fn map(about: &str, values: Value) -> Value {
    json!({ "type": "object", "description": about, "additionalProperties": values })
}

pub fn schema(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A definition of this kind.
fn defines(kind: &str) -> Value {
    json!({ "type": "object", "required": [kind], "properties": { kind: { "type": "string" } }, "additionalProperties": true })
}

pub fn one_of(about: &str, words: &[&str]) -> Value {
    json!({ "enum": words, "description": about })
}

pub fn status() -> Value {
    one_of("Where the run is in its life.", STATUSES)
}

fn problems() -> Value {
    let words: Vec<&str> = codes::ALL.iter().map(|code| code.code).collect();
    json!({
        "Problem": object("What went wrong, as RFC 9457 writes it.", json!({
            "type": text("The address of the page of the code."),
            "title": text("The code in words."),
            "status": json!({ "type": "integer", "minimum": 400, "maximum": 599 }),
            "detail": text("What is wrong with this very request."),
            "code": one_of("Stable, for machines.", &words),
            "errors?": list("Places in the request.", object("A place.", json!({
                "pointer?": text("A JSON pointer into the body."),
                "parameter?": text("A parameter or header."),
                "detail": text("What is wrong there."),
            }))),
            "diagnostics?": schema("Diagnostics"),
            "eventId?": text("Of an event that a machine turned down."),
            "accepts?": list("Events that the state takes which turned it down.", text("")),
            "owner?": text("Who holds the lock that was asked for."),
            "until?": time("When that lock ends unless it is extended."),
        })),
        "Diagnostics": any("What is wrong with a definition: each with its severity, code, message, line, column and remedy."),
        "Health": object("How this instance is.", json!({ "status": text("`ok`."), "instance?": text("Its name.") })),
    })
}

fn flows() -> Value {
    let stored = |more: Value| {
        let mut fields = json!({
            "tenant": text("Whose it is."),
            "flow": text("The name of the flow."),
            "hash": text("Known by its content."),
            "origin": maybe(text("The folder that its commands run in.")),
            "createdAt": time("When it was first registered."),
            "latest": flag("Whether new runs use it."),
        });
        for (name, schema) in more.as_object().cloned().unwrap_or_default() {
            fields[name] = schema;
        }
        fields
    };
    json!({
        "Definition": { "type": "object", "description": "A flow or a machine. `flowline schema` prints the whole schema.", "anyOf": [defines("flow"), defines("machine")] },
        "Registered": object("A definition that is stored.", json!({
            "flow": text("The name of the flow."),
            "hash": text("Known by its content."),
            "created": flag("Whether it was new."),
            "warnings": schema("Diagnostics"),
        })),
        "Activate": object("Which version.", json!({ "version": text("The hash of a definition of the flow; its first 6 characters or more will do.") })),
        "FlowChanged": object("A flow that was activated or retired.", json!({
            "flow": text("The name of the flow."),
            "hash": maybe(text("Of the definition that new runs use; null for a retired flow.")),
            "retired": flag("Whether it takes no new runs."),
        })),
        "Validated": object("What is right and wrong with a definition.", json!({
            "valid": flag("Whether it could be registered."),
            "flow?": text("The name of the flow."),
            "diagnostics": schema("Diagnostics"),
        })),
        "Flow": object("A definition.", stored(json!({
            "definition": schema("Definition"), "retired": flag("Whether the flow takes no new runs."),
        }))),
        "FlowList": object("Definitions.", json!({
            "items": list("", object("A definition.", stored(json!({
                "kind?": one_of("What it defines.", &["flow", "machine"]), "runs?": map("Runs of the flow by status.", count("")),
                "retired?": flag("Whether the flow takes no new runs."),
                "notRunHere?": list("Steps that this server can't run; another instance on the same store may.", object("", json!({
                    "need": text("What an instance must be able to run."),
                    "steps": list("", text("")),
                    "remedy": text("What to do."),
                }))),
            })))),
        })),
        "Graph": object("A flow or a machine as a graph.", json!({
            "flow": text("The name of the flow or machine."),
            "nodes": list("Steps and events from outside, or states.", object("A node.", json!({
                "id": text("Within this graph."),
                "kind": one_of("", &["step", "entry", "event", "state", "initial", "final", "failed"]), "name": text(""),
                "runner?": text("How a step runs."), "if?": text("The step's condition."),
            }))),
            "edges": list("", object("What a node waits for, or what leads from a state to the next.", json!({
                "from": text(""), "to": text(""), "event?": text("The event waited for."),
                "join?": one_of("Of a flow.", &["all", "any"]),
                "after?": text("The delay of a timer."), "at?": text("The expression that says when a timer fires."),
                "action?": text("The action whose failure leads there."), "if?": text("The transition's condition."),
                "roles?": list("Who may send the event.", text("")),
                "stays?": flag("The state is not left."),
            }))),
        })),
    })
}

fn run_fields(more: Value) -> Value {
    let mut fields = json!({
        "runId": text("Its id."),
        "flowName": text("Its flow."),
        "tenant": text("Whose it is."),
        "definition": text("The hash of the definition that it is pinned to."),
        "status": status(),
        "state?": text("The state that a machine is in."),
        "createdAt": time("When it was started."),
        "startedAt": maybe(time("When its first attempt began; of a machine, when it entered its first state; of a run that ended before, when it was created.")),
        "completedAt": maybe(time("When it ended.")),
        "duration": maybe(count("From createdAt to completedAt, in milliseconds.")),
        "stepCount": count("Steps of its definition."),
        "completedSteps": count(""),
        "failedSteps": count(""),
        "retries": count("Attempts that were tried again."),
        "failure": { "oneOf": [{ "type": "null" }, object("Why it failed, or will fail.", json!({ "error": text(""), "step?": text("") }))] },
        "labels": map("", text("")),
        "idempotencyKey": maybe(text("")),
        "retryOf": maybe(text("The run that it repeats.")),
        "retain?": object("How long its definition keeps it after its end, where it says so. What is left out is as the settings keep-events and keep-runs say.", json!({ "events?": text("A duration such as 1d."), "runs?": text("A duration such as 7d.") })),
        "version": count("Counts its commits."),
        "events": count("Events in its log."),
        "eventsTrimmed": flag("Whether retention has removed its log."),
    });
    for (name, schema) in more.as_object().cloned().unwrap_or_default() {
        fields[name] = schema;
    }
    fields
}

fn runs() -> Value {
    let start = |more: Value| {
        let mut fields = json!({

            "input?": any("The run's input; null where it is left out."),
            "idempotencyKey?": { "type": "string", "minLength": 1, "description": "One key makes one run." },
            "labels?": map("To find the run by.", text("")),
            "delay?": span("Start the first steps no sooner than this from now."),
            "priority?": one_of("", &["low", "normal", "high", "urgent"]),
            "version?": text("A hash of a definition; the latest where it is left out."),
        });
        for (name, schema) in more.as_object().cloned().unwrap_or_default() {
            fields[name] = schema;
        }
        fields
    };
    let started = json!({
        "runId": text("Its id."), "existed": flag("Whether the key named a run that was there."), "status": status(),
        "result?": any("Of a completed run that was waited for."), "error?": text("Of a failed run that was waited for."),
    });
    let job = json!({
        "name": text("The step."), "attempt": count(""), "queue": text(""), "need": text("What a worker must be able to run."),
        "priority": any(""), "due": time(""), "state": one_of("", &["waiting", "held", "leased"]),
        "worker?": text("Who holds its lease."), "leasedAt?": time(""), "expires?": time("When its lease runs out."),
    });
    let position = position();
    let machine = json!({
        "context": any("What it remembers."), "accepts": position["accepts"], "turn?": position["turn"],
        "inbox": position["inbox"], "timers": position["timers"],
    });
    json!({
        "Start": taken("How a run starts.", start(json!({ "flow?": text("The flow, as in the path.") }))),
        "Started": object("A run that was started.", started.clone()),
        "BatchStart": taken("Runs to start.", json!({
            "runs": { "type": "array", "maxItems": BATCH, "items": taken("How a run starts.", start(json!({ "flow": text("The flow.") }))) },
        })),
        "BatchStarted": object("What became of each, in the order of the request.", json!({
            "items": list("", json!({ "oneOf": [
                object("It is started.", started),
                object("It was refused.", json!({ "error": schema("Problem") })),
            ] })),
        })),
        "RunPage": object("A page of runs, the newest first.", json!({
            "items": list("", object("A run.", run_fields(json!({})))),
            "hasMore": flag(""), "next": maybe(text("`cursor` of the next page.")),
            "total?": count("All that the filters let through."), "totalAtLeast?": count("In place of a total that was not counted to its end."),
        })),
        "Job": object("A job: work that waits or is under way.", job),
        "Run": object("A run, whole.", run_fields(json!({
            "steps": list("", object("A step.", json!({
                "name": text(""), "status": text(""), "attempts": count(""),
                "inputEvents?": list("The events in its input, fixed when it was triggered. An entry step has none: it gets the run's input.", text("")),
                "durationMs": maybe(count("From its first start to its end.")),
                "error?": text("Of its last try that failed, or why it was skipped."),
            }))),
            "jobs": list("", schema("Job")),
            "emittedEvents": list("", text("")),
            "awaits": list("Events from outside that a step waits for, or that a machine answers in its state.", text("")),
            "context?": any("What a machine remembers."), "accepts?": position["accepts"], "turn?": position["turn"],
            "inbox?": position["inbox"], "timers?": position["timers"],
            "result": any("Of a completed run."),
            "error": maybe(text("Of a failed run.")),
        }))),
        "Event": object("One thing that happened to a run.", json!({
            "id": text("`<ms>-<seq>`, the cursor within the run."), "seq": count("1, 2, 3 … without gaps."), "ts": time(""),
            "type": one_of("", EVENT_TYPES), "runId": text(""), "flowName": text(""), "tenant": text(""),
            "stepName?": text(""), "stepId?": text(""), "attempt?": count(""), "data?": any("As the type says."), "v": count(""),
        })),
        "EventPage": object("A page of a log.", json!({
            "items": list("", schema("Event")), "hasMore": flag(""), "next": maybe(count("`after` of the next page.")),
            "total?": count("Events that the filters let through, wherever the page lies."),
            "totalAtLeast?": count("In place of `total` where more than 10,000 events pass the filters."),
            "eventsTrimmed": flag("Whether retention has removed the log."),
        })),
        "Outcome": object("How a run ended, if it has.", json!({
            "runId": text(""), "status": status(), "result": any("Of a completed run."), "error": maybe(text("Of a failed run.")),
        })),
        "State": object("Key-value state, as a run sees it.", json!({
            "scope": text("`run`, `flow`, `tenant` or any other name."), "values": map("", any("")),
            "hasMore": flag("Whether there are more than these."),
        })),
        "StateScopes": object("Scopes that hold a value.", json!({
            "items": list("", object("A scope.", json!({ "scope": text("`tenant`, or a name.") }))),
        })),
        "StateEntry": object("A key with its value.", state_entry()),
        "StateList": object("A page of key-values.", json!({
            "items": list("By key.", schema("StateEntry")), "next": maybe(text("`cursor` of the next page.")),
        })),
        "StateWrite": object("A value to write.", json!({
            "value": any("Up to `max-payload`, 1 MiB by default."), "ttl?": text("The value is gone after this time: `30s`, `1h`, `7d`."),
        })),
        "StateChanged": object("What became of a change.", json!({
            "scope": text(""), "key": text(""), "changed": flag("False where there was nothing to delete."),
        })),
        "Explanation": object("Why a run is not further.", run_fields(json!({
            "summary": text("One sentence on the run as a whole."),
            "steps": list("", object("A step.", json!({
                "step": text(""), "state": text(""), "attempt?": count(""), "reason": text("Why it is not further."),
                "missing?": list("What its subscription lacks.", object("", json!({
                    "event": text(""), "emittedBy": list("", text("")), "external": flag("Whether it comes from outside."),
                }))),
                "job?": schema("Job"),
            }))),
            "accepts": list("Events from outside that the run could still take.", text("")),
            "machine?": object("Where a machine stands.", machine),
        }))),
    })
}

fn state_entry() -> Value {
    json!({
        "scope": text("`tenant`, `flow:FLOW`, `run:RUN` or a name."), "key": text(""), "value": any(""),
        "expiresAt?": time("When it will be gone."),
    })
}

/// The parts of where a machine stands.
fn position() -> Value {
    json!({
        "accepts": list("What the present state of a machine takes.", object("", json!({
            "event": text(""), "roles?": list("Whose it must be; anyone's where there is none.", text("")),
        }))),
        "turn": object("Whose actions run.", json!({
            "by": one_of("What brought the transition about.", &["start", "event", "timer", "error"]),
            "event?": text(""), "eventId?": text(""), "actions": list("", text("")),
        })),
        "inbox": count("Events and timers that wait for their turn."),
        "timers": list("Timers that are set.", object("", json!({ "at": time(""), "to?": text("The state that it leads to.") }))),
    })
}

fn acts() -> Value {
    let send = |more: Value| {
        let mut fields = json!({
            "name": text("As the definition lists it."), "payload?": any(""),
            "eventId?": { "type": "string", "minLength": 1, "description": "Sent again with the same id to the same run it does nothing." },
            "idempotencyKey?": { "type": "string", "minLength": 1, "description": "One key, one event of the tenant." },
            "userId?": text("Who sends it: where no tokens are asked for, or for whom a token with scope `on_behalf` acts."),
            "roles?": list("In which roles, beside `userId`; under a token some of its own.", text("")),
        });
        more.as_object().into_iter().flatten().for_each(|(name, schema)| fields[name] = schema.clone());
        fields
    };
    let receipt = json!({
        "eventId": text(""), "runId": text(""), "flowName": text(""), "name": text("The event's."),
        "userId?": text("Who sent it."), "roles?": list("In which roles.", text("")),
        "sentBy?": text("The subject of the token that sent it for that user."),
        "status": one_of("How far it has come.", RECEIPT_STATUSES),
        "worker?": text("The instance that wrote what became of it; while its actions run, who holds their lease."),
        "tries?": count("Of the action that was tried most often; 1 where there was none."),
        "lockedUntil?": time("When the lease runs out that its actions run under."),
        "error?": text("Why it failed."),
        "code?": one_of("", &["wrong_state", "guard", "forbidden", "expression", "ended", "action_failed"]),
        "accepts?": list("What the state takes that turned it down.", text("")),
        "receivedAt": time(""), "startedAt?": time("When its turn came."), "completedAt?": time("When the machine was done with it."),
        "result?": object("What it did.", json!({
            "previousState": text(""), "currentState": text(""), "actionsExecuted": list("", text("")),
            "actionsFailed?": list("", text("")),
        })),
    });
    json!({
        "Applied": object("What an input did to its run.", json!({
            "runId": text(""), "changed": flag("False where the run had it before."), "status": status(),
        })),
        "Send": taken("An event from outside.", send(json!({}))),
        "StartOrSend": taken("An event from outside, and how its run starts where there is none.", send(json!({
            "key": { "type": "string", "minLength": 1, "description": "The business key: the idempotency key of the run." },
            "input?": any("The input of the run; null where it is left out."),
        }))),
        "Sent": object("What an event did to its run.", json!({
            "runId": text(""), "eventId": text(""), "changed": flag("False where the run had it before."), "status": status(),
            "receipt?": schema("Receipt"),
        })),
        "Receipt": object("What became of an event that a machine took in.", receipt),
        "ReceiptPage": object("A page of receipts, the newest first.", json!({
            "items": list("", schema("Receipt")), "hasMore": flag(""), "next": maybe(text("`cursor` of the next page.")),
        })),
        "Callback": taken("The outcome of a step: one of these. None of them is a result of null.", json!({
            "result?": any("The step's result."),
            "fail?": taken("It failed, and no retry can help.", json!({
                "error": text("For the log."), "code?": text("The kind of error."),
            })),
            "retry?": taken("It failed; the step's policy may try it again.", json!({
                "error": text("For the log."), "code?": text("For `only` and `except` of the policy."),
                "after?": text("No sooner than after this duration."),
            })),
        })),
        "Cancel": taken("", json!({ "reason?": text("For the log.") })),
        "Complete": taken("", json!({ "result?": any("The run's result.") })),
        "Fail": taken("", json!({ "error": text("For the log.") })),
        "Retry": taken("", json!({
            "from?": text("Do this step of a flow and all that follow from it again too."),
            "fromStart?": flag("Begin anew with the same input, instead of where it failed."),
        })),
        "Retried": object("A run that repeats another.", json!({
            "runId": text(""), "retryOf": text(""), "status": status(), "state?": text("The state that a machine is in."),
            "completedSteps": count("What it has of the other."),
        })),
    })
}

fn queues() -> Value {
    let page = json!({ "hasMore": flag(""), "next": maybe(text("`cursor` of the next page.")) });
    let with_page = |mut fields: Value| {
        page.as_object().into_iter().flatten().for_each(|(name, schema)| fields[name] = schema.clone());
        fields
    };
    json!({
        "QueueList": object("Queues.", json!({ "items": list("", object("A queue, by what a worker must be able to run.", json!({
            "queue": text(""), "need": text("Empty for a paused queue without jobs."), "ready": count("Due and not leased."),
            "delayed": count(""), "held": count("Of paused runs."), "leased": count("Under way."),
            "oldest": maybe(time("Since when the oldest ready job is due.")), "paused": flag(""),
        }))) })),
        "QueueChanged": object("", json!({ "queue": text(""), "paused": flag("") })),
        "DeadLetters": object("Failed runs.", with_page(json!({ "items": list("", object("A run.", run_fields(json!({})))) }))),
        "Redrive": taken("", json!({
            "limit?": { "type": "integer", "minimum": 1, "maximum": 1000 }, "dryRun?": flag("Only say which."), "cursor?": text(""),
        })),
        "Redriven": object("What became of each.", with_page(json!({
            "dryRun": flag(""),
            "items": list("", object("", json!({
                "runId": text("The dead one."), "flowName": text(""), "newRunId?": text(""), "error?": schema("Problem"),
            }))),
        }))),
        "Bulk": taken("An act on many runs.", json!({
            "action": one_of("", ACTS),
            "filter": taken("Every filter narrows.", json!({
                "flow?": text(""), "status?": status(), "label?": json!({ "type": "string", "pattern": LABEL, "description": "NAME=VALUE" }),
                "since?": text("Created at or after: a time, or so long ago."), "until?": text("Created before: a time, or so long ago."),
            })),
            "dryRun?": flag("Only say which."), "limit?": { "type": "integer", "minimum": 1, "maximum": 1000 },
            "cursor?": text("`next` of the request before."), "reason?": text("Of a cancel, for the log."),
            "fromStart?": flag("Of a retry: begin anew with the same input, instead of where the run failed."),
        })),
        "BulkDone": object("What became of each.", with_page(json!({
            "dryRun": flag(""), "total?": count(""), "totalAtLeast?": count(""),
            "items": list("", object("", json!({
                "runId": text(""), "flowName": text(""), "status": status(), "changed?": flag("False where the run had it before."),
                "newRunId?": text("Of a retry."), "error?": schema("Problem"),
            }))),
        }))),
    })
}

fn locks() -> Value {
    let held = |more: Value| {
        let mut fields = json!({
            "name": text(""), "owner": text("Who holds it."), "fence": count("Higher than that of every earlier holder."),
            "since": time(""), "until": time("When it ends unless it is extended."),
            "remainingMs": count("How long until then, by the store's clock."),
        });
        more.as_object().into_iter().flatten().for_each(|(name, schema)| fields[name] = schema.clone());
        fields
    };
    let lock_token = json!({
        "type": "string", "pattern": "^[0-9a-fA-F]{32}$", "description": "The holder's secret: it extends and releases the lock.",
    });
    let ttl = json!({
        "type": "integer", "minimum": 1_000, "maximum": 86_400_000, "default": 30_000,
        "description": "How long the lock lasts from now, in milliseconds.",
    });
    json!({
        "HeldLock": object("A lock that somebody holds.", held(json!({}))),
        "LockList": object("Locks by name.", json!({ "items": list("", schema("HeldLock")) })),
        "AcquireLock": taken("", json!({
            "owner?": json!({ "type": "string", "minLength": 1, "maxLength": 256, "description": "Who asks, as others are told; the token's subject by default." }),
            "ttlMs?": ttl.clone(), "lockToken?": lock_token.clone(),
        })),
        "AcquiredLock": object("A lock that is the asker's.", held(json!({ "lockToken": lock_token.clone() }))),
        "ExtendLock": taken("", json!({ "lockToken": lock_token.clone(), "ttlMs?": ttl })),
        "ExtendedLock": object("", json!({
            "name": text(""), "until": time(""), "remainingMs": count("How long until then, by the store's clock."),
        })),
        "ReleaseLock": taken("", json!({ "lockToken": lock_token })),
        "ReleasedLock": object("", json!({ "name": text(""), "released": flag("False if this `lockToken` did not hold it any more.") })),
    })
}

fn overview() -> Value {
    let percentiles = object(
        "In milliseconds.",
        json!({ "p50": maybe(count("")), "p95": maybe(count("")), "p99": maybe(count("")) }),
    );
    let summary = json!({
        "runs": count(""), "byStatus": map("", count("")),
        "successRate": { "type": ["number", "null"], "description": "Completed among completed and failed." },
        "durationMs": percentiles.clone(), "retries": count(""),
    });
    let mut bucket = summary.clone();
    bucket["start"] = time("");
    let mut of_flow = summary.clone();
    of_flow["byState?"] = map("Runs of a machine by state.", count(""));
    json!({
        "Stats": object("Figures.", json!({
            "total": object("", summary), "flows": map("", object("", of_flow)), "buckets": list("", object("", bucket)),
            "steps?": map("", object("", json!({ "completed": count(""), "failed": count(""), "retried": count(""), "durationMs": percentiles }))),
            "stepsSampled": flag("Whether the step figures come from the newest runs only."),
        })),
        "Report": object("What a check found.", json!({
            "runs": count(""), "events": count(""),
            "violations": list("", json!({ "type": "object", "description": "What does not hold, with the run." })),
        })),
    })
}

fn workers() -> Value {
    json!({
        "WorkerPage": object("Remote workers by name.", json!({
            "items": list("", object("A worker.", json!({
                "worker": text("Its name."), "queues": list("That it serves.", text("")), "lastSeen": time("When it last asked for work, to 15 s."),
                "instance": text("That it asked."), "subject": text("Of its token."),
            }))),
            "hasMore": flag(""), "next": maybe(text("`cursor` of the next page.")),
        })),
    })
}

fn access() -> Value {
    let words = Scope::ALL.map(Scope::as_str);
    let scopes = list("What it allows.", one_of("", &words));
    let row = |more: Value| {
        let mut fields = json!({
            "id": text("To name it by."), "tenant": text(""), "subject": text("Who uses it."), "scopes": scopes.clone(),
            "roles": list("", text("")), "flows?": list("Only these.", text("")), "queues?": list("Only these.", text("")),
            "createdAt": time(""), "expiresAt": maybe(time("")),
        });
        more.as_object().into_iter().flatten().for_each(|(name, schema)| fields[name] = schema.clone());
        fields
    };
    json!({
        "NewToken": taken("A token to be made.", json!({
            "subject": { "type": "string", "minLength": 1, "maxLength": 256, "description": "Who will use it." },
            "scopes": { "type": "array", "minItems": 1, "items": one_of("", &words) },
            "roles?": list("", text("")), "flows?": list("Only these; all where it is left out.", text("")),
            "queues?": list("Only these; all where it is left out.", text("")),
            "expires?": span("It lasts until it is revoked where this is left out."),
        })),
        "MadeToken": object("A token with its secret.", row(json!({ "token": text("The secret, shown this once.") }))),
        "TokenList": object("Tokens.", json!({ "items": list("", object("A token.", row(json!({})))) })),
        "AuditPage": object("A page of the audit log.", json!({
            "items": list("", object("A line.", json!({
                "id": text(""), "at": time(""), "subject": text("Who."), "action": text("What, in words."), "method": text(""),
                "path": text(""), "status": count("What it was answered with."),
                "onBehalfOf?": text("The user for whom it was done."),
            }))),
            "hasMore": flag(""), "next": maybe(text("`cursor` of the next page.")),
        })),
        "Principal": object("Who one is.", json!({
            "tenant": text(""), "subject": text(""), "scopes": scopes, "roles": list("", text("")),
            "flows": { "type": ["array", "null"], "items": text("") }, "queues": { "type": ["array", "null"], "items": text("") },
        })),
    })
}
