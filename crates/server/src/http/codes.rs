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
    BAD_REQUEST = 400 "bad-request" "The request cannot be understood"
        "The request is not what HTTP or the API's description allows, beyond its body and its parameters. `detail` says what is wrong.";
    BAD_BODY = 400 "bad-body" "The body is not what is expected"
        "The body is not JSON, misses a field, has one too many or one of another type. `errors` names each place by its JSON pointer. The OpenAPI document at /openapi.json has the schema.";
    BAD_PARAMETER = 400 "bad-parameter" "A parameter is not what is expected"
        "A parameter of the path or of the query is unknown, given twice or has a value that makes no sense. `errors` names it.";
    SCHEMA = 400 "schema" "The JSON does not fit the schema of the flow"
        "The flow's definition gives a schema for this input or event, and what was sent does not fit it. `errors` names the place. Change the JSON, or register a definition with another schema.";
    DEFINITION = 400 "definition" "The definition has errors"
        "The definition was not stored. `diagnostics` lists each error with its line and a remedy. POST /v1/flows/validate checks without storing.";
    INVALID = 400 "invalid" "The request asks for something that makes no sense"
        "For instance a label that is too long, an empty idempotency key, or a cursor that no page gave. `detail` says what is wrong.";
    UNAUTHORIZED = 401 "unauthorized" "A token is needed"
        "This server asks for `Authorization: Bearer TOKEN`. The token is missing, unknown, revoked or expired. `flowline token create` makes one.";
    FORBIDDEN = 403 "forbidden" "The token does not allow this"
        "The token is good, but lacks the scope that the route needs; `detail` names it. Use another token, or make one with that scope.";
    ROLE = 403 "role" "The event takes another role"
        "The machine takes this event only from somebody with a certain role: in none of its states from this sender, or not in the state that it was in. `detail` names the roles. Send it with a token that has one of them; without tokens, with `roles` in the body.";
    NOT_FOUND = 404 "not-found" "There is nothing at this address"
        "No route has this path. GET /openapi.json lists them all.";
    NO_SUCH_RUN = 404 "no-such-run" "There is no such run"
        "The tenant of the token has no run with this id: it never was, retention has removed it, or it belongs to another tenant.";
    NO_SUCH_FLOW = 404 "no-such-flow" "There is no such flow"
        "The tenant of the token has no flow with this name, or no such version of it. GET /v1/flows lists them; POST /v1/flows registers one.";
    NO_SUCH_STEP = 404 "no-such-step" "There is no such step"
        "The definition that the run is pinned to has no step with this name.";
    NO_SUCH_EVENT = 404 "no-such-event" "The flow accepts no such event"
        "The definition that the run is pinned to does not list this event: a flow under `accepts`, a machine under `events` or in a state.";
    NO_SUCH_RECEIPT = 404 "no-such-receipt" "There is no receipt of such an event"
        "The run has taken in no event with this id. Only machines keep receipts: what a flow was sent is in its log.";
    NO_SUCH_QUEUE = 404 "no-such-queue" "There is no such queue"
        "No job waits in a queue of this name, none is leased and it is not paused.";
    NO_SUCH_LOCK = 404 "no-such-lock" "Nobody holds this lock"
        "No lock of this name is held in the tenant of the token: it never was, it was released, or its time is over.";
    NO_SUCH_KEY = 404 "no-such-key" "There is no such key"
        "The scope of key-value state has no value under this key, or its time is over. GET /v1/state/{scope} lists the keys.";
    NO_SUCH_TOKEN = 404 "no-such-token" "There is no such token"
        "No token of this tenant has this id.";
    METHOD_NOT_ALLOWED = 405 "method-not-allowed" "This address does not take that method"
        "The `Allow` header lists the methods that it takes.";
    NOT_ACCEPTABLE = 406 "not-acceptable" "There is no answer in that form"
        "The `Accept` header asks for a media type that this route does not give.";
    REQUEST_TIMEOUT = 408 "request-timeout" "The request came too slowly"
        "The body was not there in time. Send it again; make it smaller if it was large.";
    RUN_ENDED = 409 "run-ended" "The run has ended"
        "An ended run takes no more input. POST /v1/runs/{run}/retry repeats it as a new run.";
    RUN_NOT_ENDED = 409 "run-not-ended" "The run has not ended"
        "Only an ended run can be retried or deleted. Cancel it first, or wait for its end.";
    FLOW_RETIRED = 409 "flow-retired" "The flow is retired"
        "No new run of the flow starts; those under way go on. Register a definition of it, or bring a version back with POST /v1/flows/{flow}/activate. GET /v1/flows/{flow}/versions lists them.";
    REFUSED = 409 "refused" "The run cannot take this input"
        "The run is in a state that rules the request out. `detail` says why; GET /v1/runs/{run}/explain says what the run waits for.";
    KEY_CONFLICT = 409 "key-conflict" "The idempotency key stands for another request"
        "A run was started with this key and another input, or an event was sent with this key, another name or payload, or to another run. Send the same to get the same, or use another key.";
    EVENT_REJECTED = 409 "event-rejected" "The machine turned the event down"
        "The event is in the log, and moved nothing: the state that the machine was in when its turn came does not take it, no condition held, or an expression failed. `detail` says which; `accepts` lists what that state takes. The receipt of `eventId` says the same.";
    STALE_LEASE = 409 "stale-lease" "The lease is gone"
        "The attempt no longer belongs to this worker: its lease expired or was given back, its time was up, or its run has ended. Nothing was written. Stop the work and claim again. (A report that was recorded is answered with 200 and `applied: false`, not with this.)";
    OUTCOME_CONFLICT = 409 "outcome-conflict" "The attempt was reported with another outcome"
        "An attempt has one outcome, and this one was reported before with another result or error; `detail` says how it ended. The first report counts and nothing was written. Sending the same report again is fine: it is answered with `applied: false`.";
    LOCK_HELD = 409 "lock-held" "Another holds the lock"
        "`owner` says who, and `until` when it ends unless it is extended. Try again later.";
    LOCK_LOST = 409 "lock-lost" "The lock is not yours any more"
        "This `lockToken` does not hold the lock: it was released, or its time was over before it was extended, and another may hold it now. Stop what it was meant to guard, and acquire it anew.";
    TOO_LARGE = 413 "too-large" "The request is too large"
        "The body is over the limit of the route, or a value in it is over the limit of its kind. `detail` has the figures.";
    UNSUPPORTED_MEDIA_TYPE = 415 "unsupported-media-type" "The body has a media type that is not taken"
        "Send `Content-Type: application/json`, or one of the types that the OpenAPI document lists for the route.";
    TOO_MANY = 429 "too-many-requests" "Too many requests at once"
        "The server has as much to do as it takes on. Try again after the time in `Retry-After`.";
    INBOX_FULL = 429 "inbox-full" "Too many events wait in the run"
        "The machine has as many events in its inbox as it keeps: the actions of one before them are still at work. The event was not taken in. Send it again after the time in `Retry-After`.";
    INTERNAL = 500 "internal" "Something is wrong with this server"
        "A fault of Flowline, not of the request. The server's log has more under the request's id.";
    STORE = 500 "store" "The store has a fault"
        "The store answered with something that cannot be. `flowline doctor` and `flowline verify` say more.";
    UNAVAILABLE = 503 "unavailable" "The store cannot be reached or takes no writes"
        "Whether a write happened may be unknown: repeat it with the same idempotency key. Try again after the time in `Retry-After`; /readyz tells when it is over.";
    STOPPING = 503 "stopping" "This server is stopping"
        "Another instance, or this one after its restart, will take the request.";
    TIMEOUT = 504 "timeout" "The answer took too long"
        "The server gave up after its time limit. Whether a write happened may be unknown: repeat it with the same idempotency key.";
}

impl Code {
    pub fn find(code: &str) -> Option<&'static Code> {
        ALL.iter().copied().find(|known| known.code == code)
    }
}
