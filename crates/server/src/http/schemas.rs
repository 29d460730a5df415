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
    one_of("Status of the run.", STATUSES)
}

fn problems() -> Value {
    let words: Vec<&str> = codes::ALL.iter().map(|code| code.code).collect();
    json!({
        "Problem": object("A problem, in the format of RFC 9457.", json!({
            "type": text("URL of the page about this code."),
            "title": text("Short summary of the code."),
            "status": json!({ "type": "integer", "minimum": 400, "maximum": 599 }),
            "detail": text("What is wrong with this request."),
            "code": one_of("Stable code for programs.", &words),
            "errors?": list("Where in the request.", object("A place.", json!({
                "pointer?": text("A JSON pointer into the body."),
                "parameter?": text("A parameter or header."),
                "detail": text("What is wrong there."),
            }))),
            "diagnostics?": schema("Diagnostics"),
            "eventId?": text("Id of the event that a machine rejected."),
            "accepts?": list("Events that the machine's state accepts.", text("")),
            "owner?": text("Who holds the lock."),
            "until?": time("When the lock expires unless it's extended."),
        })),
        "Diagnostics": any("Problems in a definition, each with severity, code, message, line, column and help."),
        "Health": object("Health of this instance.", json!({ "status": text("`ok`."), "instance?": text("Its name.") })),
    })
}

fn flows() -> Value {
    let stored = |more: Value| {
        let mut fields = json!({
            "tenant": text("Tenant it belongs to."),
            "flow": text("Name of the flow."),
            "hash": text("Hash of the content."),
            "origin": maybe(text("Directory that its commands run in.")),
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
        "Registered": object("A registered definition.", json!({
            "flow": text("Name of the flow."),
            "hash": text("Hash of the content."),
            "created": flag("Whether it was new."),
            "warnings": schema("Diagnostics"),
        })),
        "Activate": object("Version to activate.", json!({ "version": text("Hash of a version of the flow, or at least its first 6 characters.") })),
        "FlowChanged": object("A flow that was activated or retired.", json!({
            "flow": text("Name of the flow."),
            "hash": maybe(text("Version that new runs use; null for a retired flow.")),
            "retired": flag("Whether it's retired: no new runs start."),
        })),
        "Validated": object("Result of checking a definition.", json!({
            "valid": flag("Whether it could be registered."),
            "flow?": text("Name of the flow."),
            "diagnostics": schema("Diagnostics"),
        })),
        "Flow": object("A definition.", stored(json!({
            "definition": schema("Definition"), "retired": flag("Whether the flow is retired: no new runs start."),
        }))),
        "FlowList": object("Definitions.", json!({
            "items": list("", object("A definition.", stored(json!({
                "kind?": one_of("What it defines.", &["flow", "machine"]), "runs?": map("Runs of the flow by status.", count("")),
                "retired?": flag("Whether the flow is retired: no new runs start."),
                "notRunHere?": list("Steps that this server can't run; another instance on the same store may.", object("", json!({
                    "need": text("What an instance has to be able to run."),
                    "steps": list("", text("")),
                    "remedy": text("What to do."),
                }))),
            })))),
        })),
        "Graph": object("A flow or a machine as a graph.", json!({
            "flow": text("Name of the flow or machine."),
            "nodes": list("Steps and external events, or states.", object("A node.", json!({
                "id": text("Unique in this graph."),
                "kind": one_of("", &["step", "entry", "event", "state", "initial", "final", "failed"]), "name": text(""),
                "runner?": text("How a step runs."), "if?": text("The step's condition."),
            }))),
            "edges": list("", object("What a node waits for, or a transition between states.", json!({
                "from": text(""), "to": text(""), "event?": text("Event it waits for, or that causes the transition."),
                "join?": one_of("For flows: whether the node needs all of its edges or any.", &["all", "any"]),
                "after?": text("Delay of a timer."), "at?": text("Expression for when a timer fires."),
                "action?": text("Action whose failure causes the transition."), "if?": text("The transition's condition."),
                "roles?": list("Who may send the event.", text("")),
                "stays?": flag("Whether the machine stays in its state."),
            }))),
        })),
    })
}

fn run_fields(more: Value) -> Value {
    let mut fields = json!({
        "runId": text("Its id."),
        "flowName": text("Its flow."),
        "tenant": text("Tenant it belongs to."),
        "definition": text("Hash of the version that it uses."),
        "status": status(),
        "state?": text("State of a machine."),
        "createdAt": time("When it was started."),
        "startedAt": maybe(time("When its first attempt started, or when a machine entered its first state; createdAt if the run ended before that.")),
        "completedAt": maybe(time("When it ended.")),
        "duration": maybe(count("From createdAt to completedAt, in milliseconds.")),
        "stepCount": count("Steps of its definition."),
        "completedSteps": count(""),
        "failedSteps": count(""),
        "retries": count("Attempts that were retried."),
        "failure": { "oneOf": [{ "type": "null" }, object("Why it failed, or will fail.", json!({ "error": text(""), "step?": text("") }))] },
        "labels": map("", text("")),
        "idempotencyKey": maybe(text("")),
        "retryOf": maybe(text("The run that it retries.")),
        "retain?": object("How long its definition keeps it after its end, if it says so. What it leaves out follows the settings keep-events and keep-runs.", json!({ "events?": text("A duration such as 1d."), "runs?": text("A duration such as 7d.") })),
        "version": count("Number of its commits."),
        "events": count("Number of events in its log."),
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

            "input?": any("The run's input; null by default."),
            "idempotencyKey?": { "type": "string", "minLength": 1, "description": "Repeating the request with the same key and input returns the same run." },
            "labels?": map("Labels to find the run by.", text("")),
            "delay?": span("Wait this long before the first steps start."),
            "priority?": one_of("", &["low", "normal", "high", "urgent"]),
            "version?": text("Hash of a version; the latest by default."),
        });
        for (name, schema) in more.as_object().cloned().unwrap_or_default() {
            fields[name] = schema;
        }
        fields
    };
    let started = json!({
        "runId": text("Its id."), "existed": flag("Whether a run with this key already existed."), "status": status(),
        "result?": any("Result of a completed run, with `wait`."), "error?": text("Error of a failed run, with `wait`."),
    });
    let job = json!({
        "name": text("The step."), "attempt": count(""), "queue": text(""), "need": text("What a worker has to be able to run."),
        "priority": any(""), "due": time(""), "state": one_of("", &["waiting", "held", "leased"]),
        "worker?": text("Who holds its lease."), "leasedAt?": time(""), "expires?": time("When its lease expires."),
    });
    let position = position();
    let machine = json!({
        "context": any("Context of the machine."), "accepts": position["accepts"], "turn?": position["turn"],
        "inbox": position["inbox"], "timers": position["timers"],
    });
    json!({
        "Start": taken("How a run starts.", start(json!({ "flow?": text("The flow, as in the path.") }))),
        "Started": object("A run that was started.", started.clone()),
        "BatchStart": taken("Runs to start.", json!({
            "runs": { "type": "array", "maxItems": BATCH, "items": taken("How a run starts.", start(json!({ "flow": text("The flow.") }))) },
        })),
        "BatchStarted": object("The outcome for each run, in the order of the request.", json!({
            "items": list("", json!({ "oneOf": [
                object("Started.", started),
                object("Refused.", json!({ "error": schema("Problem") })),
            ] })),
        })),
        "RunPage": object("A page of runs, newest first.", json!({
            "items": list("", object("A run.", run_fields(json!({})))),
            "hasMore": flag(""), "next": maybe(text("`cursor` of the next page.")),
            "total?": count("Number of runs that match the filters."), "totalAtLeast?": count("Lower bound, if counting stopped early."),
        })),
        "Job": object("A queued or running job.", job),
        "Run": object("A complete run.", run_fields(json!({
            "steps": list("", object("A step.", json!({
                "name": text(""), "status": text(""), "attempts": count(""),
                "inputEvents?": list("The events in its input, fixed when it was triggered. An entry step has none: it gets the run's input.", text("")),
                "durationMs": maybe(count("Time from its first start to its end, in milliseconds.")),
                "error?": text("Error of its last failed attempt, or why it was skipped."),
            }))),
            "jobs": list("", schema("Job")),
            "emittedEvents": list("", text("")),
            "awaits": list("External events that a step is waiting for, or that a machine accepts in its state.", text("")),
            "context?": any("Context of a machine."), "accepts?": position["accepts"], "turn?": position["turn"],
            "inbox?": position["inbox"], "timers?": position["timers"],
            "result": any("Result of a completed run."),
            "error": maybe(text("Error of a failed run.")),
        }))),
        "Event": object("One thing that happened to a run.", json!({
            "id": text("`<ms>-<seq>`, the cursor within the run."), "seq": count("1, 2, 3 … without gaps."), "ts": time(""),
            "type": one_of("", EVENT_TYPES), "runId": text(""), "flowName": text(""), "tenant": text(""),
            "stepName?": text(""), "stepId?": text(""), "attempt?": count(""), "data?": any("Depends on the type."), "v": count(""),
        })),
        "EventPage": object("A page of a log.", json!({
            "items": list("", schema("Event")), "hasMore": flag(""), "next": maybe(count("`after` of the next page.")),
            "total?": count("Number of events that match the filters, on all pages."),
            "totalAtLeast?": count("Instead of `total`, if more than 10,000 events match."),
            "eventsTrimmed": flag("Whether retention has removed the log."),
        })),
        "Outcome": object("How a run ended, if it has.", json!({
            "runId": text(""), "status": status(), "result": any("Result of a completed run."), "error": maybe(text("Error of a failed run.")),
            "eventsTrimmed": flag("Whether retention has removed the log, and the result with it."),
        })),
        "State": object("Key-value state, as a run sees it.", json!({
            "scope": text("`run`, `flow`, `tenant` or any other name."), "values": map("", any("")),
            "hasMore": flag("Whether there are more keys."),
        })),
        "StateScopes": object("Scopes that have values.", json!({
            "items": list("", object("A scope.", json!({ "scope": text("`tenant`, or a name.") }))),
        })),
        "StateEntry": object("A key with its value.", state_entry()),
        "StateList": object("A page of keys and values.", json!({
            "items": list("Sorted by key.", schema("StateEntry")), "next": maybe(text("`cursor` of the next page.")),
        })),
        "StateWrite": object("A value to write.", json!({
            "value": any("JSON value of up to `max-payload`, 1 MiB by default."), "ttl?": text("Delete the value after this time: `30s`, `1h`, `7d`."),
        })),
        "StateChanged": object("Result of a change.", json!({
            "scope": text(""), "key": text(""), "changed": flag("False if there was nothing to delete."),
        })),
        "Explanation": object("Why a run isn't progressing.", run_fields(json!({
            "summary": text("One sentence on the run as a whole."),
            "steps": list("", object("A step.", json!({
                "step": text(""), "state": text(""), "attempt?": count(""), "reason": text("Why it isn't progressing."),
                "missing?": list("Events that its subscription still needs.", object("", json!({
                    "event": text(""), "emittedBy": list("", text("")), "external": flag("Whether it's an external event."),
                }))),
                "job?": schema("Job"),
            }))),
            "accepts": list("External events that the run could still accept.", text("")),
            "machine?": object("State of a machine.", machine),
        }))),
    })
}

fn state_entry() -> Value {
    json!({
        "scope": text("`tenant`, `flow:FLOW`, `run:RUN` or a name."), "key": text(""), "value": any(""),
        "expiresAt?": time("When it expires."),
    })
}

/// The parts of where a machine stands.
fn position() -> Value {
    json!({
        "accepts": list("Events that a machine accepts in its current state.", object("", json!({
            "event": text(""), "roles?": list("Roles that may send it; anyone if absent.", text("")),
        }))),
        "turn": object("The transition whose actions are running.", json!({
            "by": one_of("What caused the transition.", &["start", "event", "timer", "error"]),
            "event?": text(""), "eventId?": text(""), "actions": list("", text("")),
        })),
        "inbox": count("Pending events and timers."),
        "timers": list("Timers that are set.", object("", json!({ "at": time(""), "to?": text("State it moves to.") }))),
    })
}

fn acts() -> Value {
    let send = |more: Value| {
        let mut fields = json!({
            "name": text("Name as in the definition."), "payload?": any(""),
            "eventId?": { "type": "string", "minLength": 1, "description": "Sending the same id to the same run again does nothing." },
            "idempotencyKey?": { "type": "string", "minLength": 1, "description": "Sending the same key in this tenant again does nothing." },
            "userId?": text("Who sends it. Only if the server doesn't require tokens, or with a token that has scope `on_behalf`."),
            "roles?": list("Roles of `userId`; with a token, only roles that the token has.", text("")),
        });
        more.as_object().into_iter().flatten().for_each(|(name, schema)| fields[name] = schema.clone());
        fields
    };
    let receipt = json!({
        "eventId": text(""), "runId": text(""), "flowName": text(""), "name": text("Name of the event."),
        "userId?": text("Who sent it."), "roles?": list("Roles of the sender.", text("")),
        "sentBy?": text("Subject of the token that sent it on behalf of that user."),
        "status": one_of("Status of the event.", RECEIPT_STATUSES),
        "worker?": text("Instance that wrote the receipt; while actions run, who holds their lease."),
        "tries?": count("Attempts of the action that needed most; 1 if there was no action."),
        "lockedUntil?": time("When the lease of its actions expires."),
        "error?": text("Why it failed."),
        "code?": one_of("", &["wrong_state", "guard", "forbidden", "expression", "ended", "action_failed"]),
        "accepts?": list("Events that the state which rejected it accepts.", text("")),
        "receivedAt": time(""), "startedAt?": time("When its turn came."), "completedAt?": time("When the machine had handled it."),
        "result?": object("What it did.", json!({
            "previousState": text(""), "currentState": text(""), "actionsExecuted": list("", text("")),
            "actionsFailed?": list("", text("")),
        })),
    });
    json!({
        "Applied": object("Result of an operation on a run.", json!({
            "runId": text(""), "changed": flag("False if this changed nothing."), "status": status(),
        })),
        "Send": taken("An external event.", send(json!({}))),
        "StartOrSend": taken("An external event, and how to start its run if needed.", send(json!({
            "key": { "type": "string", "minLength": 1, "description": "Business key: the idempotency key of the run." },
            "input?": any("Input of the run; null by default."),
        }))),
        "Sent": object("Result of sending an event.", json!({
            "runId": text(""), "eventId": text(""), "changed": flag("False if this changed nothing."), "status": status(),
            "receipt?": schema("Receipt"),
        })),
        "Receipt": object("What happened to an event that a machine received.", receipt),
        "ReceiptPage": object("A page of receipts, newest first.", json!({
            "items": list("", schema("Receipt")), "hasMore": flag(""), "next": maybe(text("`cursor` of the next page.")),
        })),
        "Callback": taken("The outcome of a step: one of these fields. An empty object means a result of null.", json!({
            "result?": any("The step's result."),
            "fail?": taken("It failed, and a retry won't help.", json!({
                "error": text("Message for the log."), "code?": text("Error code."),
            })),
            "retry?": taken("It failed; retried as the step's retry policy allows.", json!({
                "error": text("Message for the log."), "code?": text("Error code, for `only` and `except` of the retry policy."),
                "after?": text("Retry after this time at the earliest."),
            })),
        })),
        "Cancel": taken("", json!({ "reason?": text("Reason for the log.") })),
        "Complete": taken("", json!({ "result?": any("The run's result.") })),
        "Fail": taken("", json!({ "error": text("Message for the log.") })),
        "Retry": taken("", json!({
            "from?": text("Also repeat this step of a flow and every step after it."),
            "fromStart?": flag("Start over with the same input, instead of where it failed."),
        })),
        "Retried": object("A run that retries another.", json!({
            "runId": text(""), "retryOf": text(""), "status": status(), "state?": text("State of a machine."),
            "completedSteps": count("Steps that it keeps from the other run."),
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
        "QueueList": object("Queues.", json!({ "items": list("", object("A queue and what a worker has to be able to run.", json!({
            "queue": text(""), "need": text("Empty for a paused queue without jobs."), "ready": count("Due and not leased."),
            "delayed": count(""), "held": count("Jobs of paused runs."), "leased": count("Running."),
            "oldest": maybe(time("When the oldest ready job became due.")), "paused": flag(""),
        }))) })),
        "QueueChanged": object("", json!({ "queue": text(""), "paused": flag("") })),
        "DeadLetters": object("Failed runs.", with_page(json!({ "items": list("", object("A run.", run_fields(json!({})))) }))),
        "Redrive": taken("", json!({
            "limit?": { "type": "integer", "minimum": 1, "maximum": 1000 }, "dryRun?": flag("Only list the runs."), "cursor?": text(""),
        })),
        "Redriven": object("The outcome for each run.", with_page(json!({
            "dryRun": flag(""),
            "items": list("", object("", json!({
                "runId": text("The failed run."), "flowName": text(""), "newRunId?": text(""), "error?": schema("Problem"),
            }))),
        }))),
        "Bulk": taken("An action on many runs.", json!({
            "action": one_of("", ACTS),
            "filter": taken("Runs have to match all of these.", json!({
                "flow?": text(""), "status?": status(), "label?": json!({ "type": "string", "pattern": LABEL, "description": "NAME=VALUE" }),
                "since?": text("Only runs created at or after this: a timestamp or an age."), "until?": text("Only runs created before this: a timestamp or an age."),
            })),
            "dryRun?": flag("Only list the runs."), "limit?": { "type": "integer", "minimum": 1, "maximum": 1000 },
            "cursor?": text("`next` of the previous response."), "reason?": text("For a cancel: reason for the log."),
            "fromStart?": flag("For a retry: start over with the same input, instead of where the run failed."),
        })),
        "BulkDone": object("The outcome for each run.", with_page(json!({
            "dryRun": flag(""), "total?": count(""), "totalAtLeast?": count(""),
            "items": list("", object("", json!({
                "runId": text(""), "flowName": text(""), "status": status(), "changed?": flag("False if this changed nothing."),
                "newRunId?": text("For a retry: the new run."), "error?": schema("Problem"),
            }))),
        }))),
    })
}

fn locks() -> Value {
    let held = |more: Value| {
        let mut fields = json!({
            "name": text(""), "owner": text("Who holds it."), "fence": count("Higher than the fence of every earlier holder."),
            "since": time(""), "until": time("When it expires unless it's extended."),
            "remainingMs": count("Time until then, by the store's clock."),
        });
        more.as_object().into_iter().flatten().for_each(|(name, schema)| fields[name] = schema.clone());
        fields
    };
    let lock_token = json!({
        "type": "string", "pattern": "^[0-9a-fA-F]{32}$", "description": "The holder's secret, needed to extend and release the lock.",
    });
    let ttl = json!({
        "type": "integer", "minimum": 1_000, "maximum": 86_400_000, "default": 30_000,
        "description": "How long the lock lasts from now, in milliseconds.",
    });
    json!({
        "HeldLock": object("A lock that is held.", held(json!({}))),
        "LockList": object("Locks by name.", json!({ "items": list("", schema("HeldLock")) })),
        "AcquireLock": taken("", json!({
            "owner?": json!({ "type": "string", "minLength": 1, "maxLength": 256, "description": "Name to show as the holder; the token's subject by default." }),
            "ttlMs?": ttl.clone(), "lockToken?": lock_token.clone(),
        })),
        "AcquiredLock": object("A lock that you now hold.", held(json!({ "lockToken": lock_token.clone() }))),
        "ExtendLock": taken("", json!({ "lockToken": lock_token.clone(), "ttlMs?": ttl })),
        "ExtendedLock": object("", json!({
            "name": text(""), "until": time(""), "remainingMs": count("Time until then, by the store's clock."),
        })),
        "ReleaseLock": taken("", json!({ "lockToken": lock_token })),
        "ReleasedLock": object("", json!({ "name": text(""), "released": flag("False if this `lockToken` didn't hold the lock any more.") })),
    })
}

fn overview() -> Value {
    let percentiles = object(
        "In milliseconds.",
        json!({ "p50": maybe(count("")), "p95": maybe(count("")), "p99": maybe(count("")) }),
    );
    let summary = json!({
        "runs": count(""), "byStatus": map("", count("")),
        "successRate": { "type": ["number", "null"], "description": "Completed runs as a share of completed and failed ones." },
        "durationMs": percentiles.clone(), "retries": count(""),
    });
    let mut bucket = summary.clone();
    bucket["start"] = time("");
    let mut of_flow = summary.clone();
    of_flow["byState?"] = map("Runs of a machine by state.", count(""));
    json!({
        "Stats": object("Statistics.", json!({
            "total": object("", summary), "flows": map("", object("", of_flow)), "buckets": list("", object("", bucket)),
            "steps?": map("", object("", json!({ "completed": count(""), "failed": count(""), "retried": count(""), "durationMs": percentiles }))),
            "stepsSampled": flag("Whether the step figures cover the newest runs only."),
        })),
        "Report": object("Result of a check.", json!({
            "runs": count(""), "events": count(""),
            "violations": list("", json!({ "type": "object", "description": "What doesn't match, with the run." })),
        })),
    })
}

fn workers() -> Value {
    json!({
        "WorkerPage": object("Remote workers by name.", json!({
            "items": list("", object("A worker.", json!({
                "worker": text("Its name."), "queues": list("Queues that it serves.", text("")), "lastSeen": time("When it was last seen, to within 15 s."),
                "instance": text("Instance that it talked to."), "subject": text("Subject of its token."),
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
            "id": text("Id of the token."), "tenant": text(""), "subject": text("Who the token is for."), "scopes": scopes.clone(),
            "roles": list("", text("")), "flows?": list("Flows that it's limited to.", text("")), "queues?": list("Queues that it's limited to.", text("")),
            "createdAt": time(""), "expiresAt": maybe(time("")),
        });
        more.as_object().into_iter().flatten().for_each(|(name, schema)| fields[name] = schema.clone());
        fields
    };
    json!({
        "NewToken": taken("A token to create.", json!({
            "subject": { "type": "string", "minLength": 1, "maxLength": 256, "description": "Who the token is for." },
            "scopes": { "type": "array", "minItems": 1, "items": one_of("", &words) },
            "roles?": list("", text("")), "flows?": list("Flows to limit it to; all by default.", text("")),
            "queues?": list("Queues to limit it to; all by default.", text("")),
            "expires?": span("Expire after this time; never by default."),
        })),
        "MadeToken": object("A token with its secret.", row(json!({ "token": text("The secret, shown only here.") }))),
        "TokenList": object("Tokens.", json!({ "items": list("", object("A token.", row(json!({})))) })),
        "AuditPage": object("A page of the audit log.", json!({
            "items": list("", object("An entry.", json!({
                "id": text(""), "at": time(""), "subject": text("Who did it."), "action": text("What was done."), "method": text(""),
                "path": text(""), "status": count("HTTP status of the response."),
                "onBehalfOf?": text("User on whose behalf it was done."),
            }))),
            "hasMore": flag(""), "next": maybe(text("`cursor` of the next page.")),
        })),
        "Principal": object("Who you are, as your token says.", json!({
            "tenant": text(""), "subject": text(""), "scopes": scopes, "roles": list("", text("")),
            "flows": { "type": ["array", "null"], "items": text("") }, "queues": { "type": ["array", "null"], "items": text("") },
        })),
    })
}
