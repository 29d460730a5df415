//! The codes of problems: stable words for machines, each with a page of its own for people.

/// A kind of problem.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    /// Stable; the last part of the problem's `type`.
    pub code: &'static str,
    pub status: u16,
    pub title: &'static str,
    /// What it means and what to do, for the page of the code.
    pub about: &'static str,
}

macro_rules! codes {
    ($($name:ident = $status:literal $code:literal $title:literal $about:literal;)*) => {
        $(pub const $name: Code = Code { code: $code, status: $status, title: $title, about: $about };)*
        /// Every code there is.
        pub const ALL: &[&Code] = &[$(&$name),*];
    };
}

codes! {
    BAD_REQUEST = 400 "bad-request" "The request is malformed"
        "Something other than the body or the parameters isn't valid. `detail` says what.";
    BAD_BODY = 400 "bad-body" "The body isn't valid"
        "The body isn't JSON, or a field is missing, unknown or of the wrong type. `errors` has a JSON pointer to each. The OpenAPI document at /openapi.json has the schema.";
    BAD_PARAMETER = 400 "bad-parameter" "A parameter isn't valid"
        "A path or query parameter is unknown, given twice, or has an invalid value. `errors` names it.";
    SCHEMA = 400 "schema" "The JSON doesn't match the flow's schema"
        "The definition has a schema for this input or event, and what you sent doesn't match it. `errors` names the place. Fix the JSON, or register a definition with another schema.";
    TOO_COSTLY = 400 "too-costly" "An expression or a schema of the definition takes too long on this JSON"
        "Every expression and schema has a budget of steps and bytes, and this one was stopped when it ran out. `detail` says which. Send less data, or simplify the definition; work of this size belongs in a step.";
    DEFINITION = 400 "definition" "The definition has errors"
        "The definition wasn't registered. `diagnostics` lists each error with its line and how to fix it. To check a definition without registering it, use POST /v1/flows/validate.";
    INVALID = 400 "invalid" "The request isn't valid"
        "For example, a label is too long, an idempotency key is empty, or a cursor didn't come from an earlier page. `detail` says what's wrong.";
    UNAUTHORIZED = 401 "unauthorized" "An API token is required"
        "This server requires `Authorization: Bearer TOKEN`, and the token is missing, unknown, revoked or expired. Create one with `flowline token create`.";
    TOKEN_EXPIRED = 401 "token-expired" "The API token has expired"
        "The token was valid but has expired; `detail` says when. Replace tokens before they expire with `flowline token rotate ID`, or create another with `flowline token create`. A month after it has expired, a token gets `unauthorized`, like an unknown one.";
    FORBIDDEN = 403 "forbidden" "The token doesn't allow this"
        "The token is valid but lacks the scope this needs, or is bound to other flows or queues; `detail` says which. Use another token, or create one that allows it.";
    ROLE = 403 "role" "The event requires another role"
        "The machine accepts this event only from certain roles, in any of its states or in its current one; `detail` names them. Send it with a token that has one of these roles. If the server doesn't require tokens, send `roles` in the body.";
    NOT_FOUND = 404 "not-found" "Not found"
        "There's no route with this path. GET /openapi.json lists all routes.";
    NO_SUCH_RUN = 404 "no-such-run" "No such run"
        "The token's tenant has no run with this id: it never existed, was deleted or removed by retention, or belongs to another tenant.";
    NO_SUCH_FLOW = 404 "no-such-flow" "No such flow"
        "The token's tenant has no flow with this name, or no such version of it. GET /v1/flows lists the flows; POST /v1/flows registers one.";
    NO_SUCH_STEP = 404 "no-such-step" "No such step"
        "The run's version of the definition has no step with this name.";
    NO_SUCH_EVENT = 404 "no-such-event" "The flow doesn't accept this event"
        "The run's version of the definition doesn't list this event. A flow lists events under `accepts`, a machine under `events` or in a state.";
    NO_SUCH_RECEIPT = 404 "no-such-receipt" "No such receipt"
        "The run hasn't received an event with this id. Only machines keep receipts; for a flow, see its log.";
    NO_SUCH_QUEUE = 404 "no-such-queue" "No such queue"
        "The queue has no jobs and isn't paused.";
    NO_SUCH_LOCK = 404 "no-such-lock" "This lock isn't held"
        "No one holds a lock with this name in the token's tenant: it was never acquired, was released, or has expired.";
    NO_SUCH_KEY = 404 "no-such-key" "No such key"
        "This scope of key-value state has no such key, or it has expired. GET /v1/state/{scope} lists the keys.";
    NO_SUCH_TOKEN = 404 "no-such-token" "No such token"
        "The tenant has no token with this id.";
    METHOD_NOT_ALLOWED = 405 "method-not-allowed" "Method not allowed"
        "This path doesn't support the request's method. The `Allow` header lists those it does.";
    NOT_ACCEPTABLE = 406 "not-acceptable" "Not acceptable"
        "This route can't respond with a media type that the `Accept` header asks for.";
    REQUEST_TIMEOUT = 408 "request-timeout" "The request took too long to arrive"
        "The body didn't arrive in time. Send it again, and make it smaller if it was large.";
    RUN_ENDED = 409 "run-ended" "The run has ended"
        "A run that has ended accepts nothing more. To retry it as a new run, use POST /v1/runs/{run}/retry.";
    RUN_NOT_ENDED = 409 "run-not-ended" "The run hasn't ended"
        "Only a run that has ended can be retried or deleted. Cancel it, or wait until it ends.";
    FLOW_RETIRED = 409 "flow-retired" "The flow is retired"
        "No new runs of the flow start; existing ones continue. To bring it back, register a definition, or activate a version with POST /v1/flows/{flow}/activate. GET /v1/flows/{flow}/versions lists the versions.";
    REFUSED = 409 "refused" "The run can't do this now"
        "The run is in a state that doesn't allow the request. `detail` says why; GET /v1/runs/{run}/explain shows what the run is waiting for.";
    KEY_CONFLICT = 409 "key-conflict" "The idempotency key was used for another request"
        "The key was used to start a run with another input, or to send an event with another name or payload or to another run. Repeat the original request exactly, or use another key.";
    EVENT_REJECTED = 409 "event-rejected" "The machine rejected the event"
        "The event is in the log but changed nothing: when its turn came, the machine's state didn't accept it, no condition was true, or an expression failed. `detail` says which, and `accepts` lists what that state accepts. The receipt of `eventId` says the same.";
    STALE_LEASE = 409 "stale-lease" "The lease is gone"
        "The attempt no longer belongs to this worker: its lease expired or was released, it timed out, or its run has ended. Nothing was written. Stop the work and claim another job. (A report that was already recorded gets 200 and `applied: false` instead.)";
    OUTCOME_CONFLICT = 409 "outcome-conflict" "The attempt was already reported with another outcome"
        "This attempt was already reported with another result or error; `detail` says how it ended. The first report counts, and nothing was written. Sending the same report again is fine: it gets `applied: false`.";
    LOCK_HELD = 409 "lock-held" "Someone else holds the lock"
        "`owner` says who, and `until` when it expires unless it's extended. Try again later.";
    LOCK_LOST = 409 "lock-lost" "You no longer hold the lock"
        "This `lockToken` doesn't hold the lock: it was released, or it expired before it was extended, and someone else may hold it now. Stop the work that it protects, and acquire it again.";
    TOO_LARGE = 413 "too-large" "The request is too large"
        "The body, or a value in it, is larger than allowed. `detail` has the numbers.";
    LOG_FULL = 413 "log-full" "The attempt has reached its log limit"
        "The attempt has logged as much as `max-log` allows, or its run as much as `max-run-log` does. Nothing in the request was written. The worker still holds the attempt: continue without log lines. Lines with state, and one short log line that says where the log stops, are still accepted.";
    UNSUPPORTED_MEDIA_TYPE = 415 "unsupported-media-type" "Unsupported media type"
        "Send `Content-Type: application/json`, or another type that the OpenAPI document lists for the route.";
    TOO_MANY = 429 "too-many-requests" "Too many requests at once"
        "The server is at its limit. Try again after the time in `Retry-After`.";
    TOO_MANY_WRONG_TOKENS = 429 "too-many-wrong-tokens" "Too many wrong tokens from this address"
        "Your address sent more tokens or sessions that aren't valid than `max-wrong-tokens` allows per minute. Valid ones still work, even from this address. Find the client there that uses an unknown, revoked or expired token, and give it a valid one; then try again after the time in `Retry-After`.";
    QUOTA_EXCEEDED = 429 "quota-exceeded" "The tenant has used up a quota"
        "The server limits how many runs a tenant may have that haven't ended (`runs`), or how many it may start per second (`starts`); `detail` says which. Nothing was started. Try again after the time in `Retry-After`, or when some runs have ended; or ask who operates the server for more.";
    INBOX_FULL = 429 "inbox-full" "The run's inbox is full"
        "The machine has too many pending events, because the actions of an earlier one are still running. The event wasn't accepted. Send it again after the time in `Retry-After`.";
    INTERNAL = 500 "internal" "Internal error"
        "A bug in Flowline, not a problem with the request. The server's log has details under the request's id.";
    STORE = 500 "store" "The store is faulty"
        "The store returned something that can't be right. Check it with `flowline doctor` and `flowline verify`.";
    UNAVAILABLE = 503 "unavailable" "The store is unavailable"
        "The store can't be reached or doesn't accept writes. A write may or may not have happened: repeat it with the same idempotency key, after the time in `Retry-After`. /readyz shows when the store is back.";
    STOPPING = 503 "stopping" "This server is stopping"
        "Send the request to another instance, or to this one after it has restarted.";
    TIMEOUT = 504 "timeout" "The response took too long"
        "The server gave up at its time limit. A write may or may not have happened: repeat it with the same idempotency key.";
}

/// The codes as text.
#[cfg(feature = "schema")]
pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|code| code.code).collect()
}

impl Code {
    pub fn find(code: &str) -> Option<&'static Code> {
        ALL.iter().copied().find(|known| known.code == code)
    }
}
