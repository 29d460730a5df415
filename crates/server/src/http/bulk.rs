//! One act on many runs, chosen by the filters of a list.

use axum::Json;
use axum::handler::Handler as _;
use flowline::RetryFrom;
use flowline::core::{Input, Status, Time};
use flowline::store::query::{MAX_PAGE, WantTotal};
use flowline::store::{RunQuery, RunRow};
use serde::Deserialize;
use serde_json::{Value, json};

use super::codes;
use super::problem::Problem;
use super::request::{Caller, Given, Params};
use super::route::{Access, Answer, Body, BodyLimit, Required, Route, Scope, Verb};
use super::runs::total_json;
use crate::filter::moment;

pub const ACTS: &[&str] = &["cancel", "pause", "resume", "retry", "delete"];

pub const ROUTES: &[Route] = &[Route {
    verb: Verb::Post,
    path: "/v1/runs/bulk",
    access: Access::Needs(Scope::Operate),
    summary: "Cancel, pause, resume, retry or delete many runs",
    about: "Applies the action to up to `limit` runs that match the filter, newest first. With `dryRun` it only lists them. If it fails for one run, that run gets an `error` and the others continue. If `next` isn't null, there are more: repeat the request with it as `cursor`. Retries use a key derived from the run, so repeating a request doesn't retry a run twice. A machine that an event or a timer took to a final state has no failed event to retry, and gets an `error` unless you set `fromStart`. A delete skips runs that haven't ended.",
    query: &[],
    body: Some(Body {
        schema: "Bulk",
        limit: BodyLimit::Bytes(64 << 10),
        required: Required::Yes,
        also: &[],
    }),
    answers: &[Answer::json(200, "BulkDone", "The outcome for each run.")],
    problems: &[],
    handler: |request, app| bulk.call(request, app),
}];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Bulk {
    action: Action,
    filter: Filter,
    #[serde(default)]
    dry_run: bool,
    limit: Option<usize>,
    cursor: Option<String>,
    reason: Option<String>,
    #[serde(default)]
    from_start: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Cancel,
    Pause,
    Resume,
    Retry,
    Delete,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Filter {
    flow: Option<String>,
    status: Option<String>,
    label: Option<String>,
    since: Option<String>,
    until: Option<String>,
}

impl Filter {
    fn query(self, caller: &Caller, now: Time) -> Result<RunQuery, Problem> {
        let wrong =
            |name: &str, what: &str| Problem::new(&codes::BAD_BODY, what).at(&format!("/filter/{name}"));
        let time = |name: &str, text: Option<String>| match text.map(|text| moment(&text, now)) {
            None => Ok(None),
            Some(Some(time)) => Ok(Some(time)),
            Some(None) => Err(wrong(name, "neither a timestamp (2026-01-31T12:00:00Z) nor an age (24h)")),
        };
        let status = match self.status.as_deref().map(Status::parse) {
            Some(None) => {
                return Err(wrong(
                    "status",
                    "not one of running, waiting, paused, completed, failed, cancelled",
                ));
            }
            status => status.flatten(),
        };
        let label = match self.label.as_deref().map(|label| label.split_once('=')) {
            Some(None) => return Err(wrong("label", "a label must be NAME=VALUE")),
            label => label.flatten().map(|(name, value)| (name.to_owned(), value.to_owned())),
        };
        if let Some(flow) = &self.flow {
            caller.check_flow(flow)?;
        } else if caller.principal.flows.is_some() {
            return Err(wrong("flow", "this token is bound to flows, so name one of them"));
        }
        Ok(RunQuery {
            flow: self.flow,
            status,
            label,
            since: time("since", self.since)?,
            until: time("until", self.until)?,
            ..RunQuery::of(caller.engine.tenant().clone())
        })
    }
}

async fn bulk(caller: Caller, _: Params, Given(bulk): Given<Bulk>) -> Result<Json<Value>, Problem> {
    let limit = bulk.limit.unwrap_or(MAX_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(Problem::new(&codes::BAD_BODY, format!("the limit must be 1 to {MAX_PAGE}")).at("/limit"));
    }
    let from = match (bulk.action, bulk.from_start) {
        (_, false) => RetryFrom::Failure,
        (Action::Retry, true) => RetryFrom::Start,
        _ => return Err(Problem::new(&codes::BAD_BODY, "only a retry can have `fromStart`").at("/fromStart")),
    };
    let now = caller.engine.store().now().await?;
    let query =
        RunQuery { cursor: bulk.cursor, limit, total: WantTotal::Yes, ..bulk.filter.query(&caller, now)? };
    let mut page = caller.engine.store().runs(query).await?;
    if bulk.action == Action::Delete {
        page.items.retain(|row| row.status.is_terminal());
    }
    let mut answer = json!({ "dryRun": bulk.dry_run, "hasMore": page.next.is_some(), "next": page.next });
    total_json(&mut answer, page.total);
    let acts = page.items.iter().map(|row| {
        let (caller, reason) = (&caller, bulk.reason.clone());
        async move {
            let item = json!({ "runId": row.run_id, "flowName": row.flow_name, "status": row.status });
            if bulk.dry_run { item } else { done(item, act(caller, row, (bulk.action, from), reason).await) }
        }
    });
    answer["items"] = futures_util::future::join_all(acts).await.into();
    Ok(Json(answer))
}

fn done(mut item: Value, outcome: Result<Value, Problem>) -> Value {
    match outcome {
        Ok(changes) => {
            changes.as_object().into_iter().flatten().for_each(|(name, value)| item[name] = value.clone())
        }
        Err(problem) => item["error"] = problem.to_json(),
    }
    item
}

async fn act(
    caller: &Caller,
    row: &RunRow,
    (action, from): (Action, RetryFrom<'_>),
    reason: Option<String>,
) -> Result<Value, Problem> {
    let input = match action {
        Action::Delete => {
            caller.engine.delete(&row.key()).await?;
            return Ok(json!({ "changed": true }));
        }
        Action::Cancel => Input::Cancel { reason },
        Action::Pause => Input::Pause,
        Action::Resume => Input::Resume,
        Action::Retry => {
            let request = caller.engine.again(&row.key(), from).await?;
            let handle = request.idempotency_key(format!("retry:{}", row.run_id)).await?;
            return Ok(json!({ "newRunId": handle.id(), "changed": !handle.existed() }));
        }
    };
    let applied = caller.engine.input(&row.key(), input).await?;
    Ok(json!({ "changed": applied.changed, "status": applied.status }))
}
