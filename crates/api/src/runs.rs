//! Runs: start one or many, list them, look at one, steer one or many.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowline_types::row::{JobRow, RunRow};
use flowline_types::time::{format_duration, parse_duration};
use flowline_types::{Event, Json, Priority, RunId, Status};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::explain::Position;
use crate::problem::ProblemDetails;

/// Runs that one request may start.
pub const BATCH: usize = 1_000;

/// How a run starts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Start"))]
pub struct RunStart {
    /// The flow, as in the path.
    pub flow: Option<String>,
    /// The run's input; null by default.
    pub input: Option<Json>,
    /// Repeating the request with the same key and input returns the same run.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub idempotency_key: Option<String>,
    /// Labels to find the run by.
    #[serde(default, deserialize_with = "crate::or_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<BTreeMap<String, String>>"))]
    pub labels: BTreeMap<String, String>,
    /// Wait this long before the first steps start.
    #[serde(default, deserialize_with = "delay", serialize_with = "delay_text")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<DurationText>"))]
    pub delay: Duration,
    #[serde(default, deserialize_with = "priority")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<Priority>"))]
    pub priority: Priority,
    /// Hash of a version; the latest by default.
    pub version: Option<String>,
}

/// A duration: `500ms`, `30s`, `1h30m`.
#[cfg(feature = "schema")]
#[derive(schemars::JsonSchema)]
#[schemars(transparent, extend("pattern" = DURATION, "examples" = ["30s"]))]
pub(crate) struct DurationText(#[allow(dead_code, reason = "only its schema is used")] String);

/// The pattern of a duration.
pub const DURATION: &str = "^([0-9]{1,6}(ms|s|m|h|d))+$";
/// The pattern of a label to filter by: NAME=VALUE.
pub const LABEL: &str = "^[^=]+=";

fn delay<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(Duration::ZERO) };
    parse_duration(&text)
        .ok_or_else(|| D::Error::custom(format!("{text:?} isn't a duration (30s, 5m, 1h30m)")))
}

fn delay_text<S: Serializer>(delay: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format_duration(*delay))
}

fn priority<'de, D: Deserializer<'de>>(from: D) -> Result<Priority, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(Priority::default()) };
    Priority::parse(&text).ok_or_else(|| D::Error::custom("a priority must be low, normal, high or urgent"))
}

/// A run that was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Started {
    /// Its id.
    pub run_id: RunId,
    /// Whether a run with this key already existed.
    pub existed: bool,
    pub status: Status,
    /// Result of a completed run, with `wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// Error of a failed run, with `wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Runs to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BatchStart {
    #[cfg_attr(feature = "schema", schemars(length(max = BATCH), with = "Vec<BatchItem>"))]
    pub runs: Vec<RunStart>,
}

/// How a run of a batch starts: it has to name its flow.
#[cfg(feature = "schema")]
struct BatchItem;

#[cfg(feature = "schema")]
impl schemars::JsonSchema for BatchItem {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "BatchItem".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let mut schema = RunStart::json_schema(generator);
        schema.insert("required".to_owned(), serde_json::json!(["flow"]));
        if let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
            let flow = serde_json::json!({ "type": "string", "description": "The flow." });
            properties.insert("flow".to_owned(), flow);
        }
        schema
    }
}

/// The outcome for each run, in the order of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BatchStarted {
    pub items: Vec<BatchOutcome>,
}

/// The outcome for one run of a batch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BatchOutcome {
    /// Started.
    Started(Started),
    /// Refused.
    Refused { error: ProblemDetails },
}

/// By what is there: serde's own reading of `untagged` would lose the digits of a result.
impl<'de> Deserialize<'de> for BatchOutcome {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<BatchOutcome, D::Error> {
        #[derive(Deserialize)]
        struct Refused {
            error: ProblemDetails,
        }
        let json = Json::deserialize(from)?;
        match json.to() {
            Ok(started) => Ok(BatchOutcome::Started(started)),
            Err(_) => {
                json.to().map(|Refused { error }| BatchOutcome::Refused { error }).map_err(D::Error::custom)
            }
        }
    }
}

/// A page of runs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "RunPage"))]
pub struct RunList {
    pub items: Vec<RunRow>,
    pub has_more: bool,
    /// `cursor` of the next page.
    pub next: Option<String>,
    /// Number of runs that match the filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Lower bound, if counting stopped early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_at_least: Option<u64>,
}

/// A complete run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Run"))]
pub struct RunView {
    #[serde(flatten)]
    pub row: RunRow,
    #[serde(flatten)]
    pub parts: RunParts,
    /// Where a machine stands.
    #[serde(flatten)]
    pub machine: Option<Position>,
}

/// In several goes: one that takes row and parts apart as it reads would lose the digits of a result.
impl<'de> Deserialize<'de> for RunView {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RunView, D::Error> {
        let json = Json::deserialize(from)?;
        let row: RunRow = json.to().map_err(D::Error::custom)?;
        let machine = if row.state.is_some() { Some(json.to().map_err(D::Error::custom)?) } else { None };
        Ok(RunView { row, parts: json.to().map_err(D::Error::custom)?, machine })
    }
}

/// What is shown of a run beside its row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunParts {
    pub steps: Vec<StepView>,
    pub jobs: Vec<JobRow>,
    /// Names of the events that were emitted, in the order of the definition.
    pub emitted_events: Vec<Arc<str>>,
    /// External events that a step is waiting for, or that a machine accepts in its state.
    pub awaits: Vec<Arc<str>>,
    /// Result of a completed run.
    pub result: Option<Json>,
    /// Error of a failed run.
    pub error: Option<String>,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepView {
    pub name: Arc<str>,
    /// `pending`, `delayed`, `queued`, `running`, `completed`, `failed` or `skipped`; `dropped` if the run ended first.
    pub status: Cow<'static, str>,
    pub attempts: u32,
    /// The events in its input, fixed when it was triggered. An entry step has none: it gets the run's input.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_events: Vec<Arc<str>>,
    /// Time from its first start to its end, in milliseconds.
    pub duration_ms: Option<u64>,
    /// Error of its last failed attempt, or why it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A page of a log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "EventPage"))]
pub struct EventList {
    pub items: Vec<Event>,
    pub has_more: bool,
    /// `after` of the next page.
    pub next: Option<u64>,
    /// Number of events that match the filters, on all pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// Instead of `total`, if more than 10,000 events match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_at_least: Option<u64>,
    /// Whether retention has removed the log.
    pub events_trimmed: bool,
}

/// How a run ended, if it has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Outcome"))]
pub struct RunResult {
    pub run_id: RunId,
    pub status: Status,
    /// Result of a completed run.
    pub result: Option<Json>,
    /// Error of a failed run.
    pub error: Option<String>,
    /// Whether retention has removed the log, and the result with it.
    pub events_trimmed: bool,
}

/// Result of an operation on a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Applied"))]
pub struct RunChanged {
    pub run_id: RunId,
    /// False if this changed nothing.
    pub changed: bool,
    pub status: Status,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Cancel"))]
pub struct CancelRun {
    /// Reason for the log.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Complete"))]
pub struct CompleteRun {
    /// The run's result.
    pub result: Option<Json>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Fail"))]
pub struct FailRun {
    /// Message for the log.
    pub error: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Retry"))]
pub struct RetryRun {
    /// Also repeat this step of a flow and every step after it.
    pub from: Option<String>,
    /// Start over with the same input, instead of where it failed.
    #[serde(default, deserialize_with = "crate::or_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<bool>"))]
    pub from_start: bool,
}

/// A run that retries another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Retried {
    pub run_id: RunId,
    pub retry_of: RunId,
    pub status: Status,
    /// State of a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Arc<str>>,
    /// Steps that it keeps from the other run.
    pub completed_steps: u32,
}

impl Retried {
    pub fn of(new: &RunRow, old: &RunId) -> Retried {
        Retried {
            run_id: new.run_id.clone(),
            retry_of: old.clone(),
            status: new.status,
            state: new.state.clone(),
            completed_steps: new.completed_steps,
        }
    }
}

/// An action on many runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Bulk"))]
pub struct BulkRequest {
    pub action: BulkAction,
    pub filter: RunFilter,
    /// Only list the runs.
    #[serde(default, deserialize_with = "crate::or_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<bool>"))]
    pub dry_run: bool,
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1000)))]
    pub limit: Option<usize>,
    /// `next` of the previous response.
    pub cursor: Option<String>,
    /// For a cancel: reason for the log.
    pub reason: Option<String>,
    /// For a retry: start over with the same input, instead of where the run failed.
    #[serde(default, deserialize_with = "crate::or_default")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<bool>"))]
    pub from_start: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum BulkAction {
    Cancel,
    Pause,
    Resume,
    Retry,
    Delete,
}

/// Only runs that match all of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "BulkFilter"))]
pub struct RunFilter {
    pub flow: Option<String>,
    #[cfg_attr(feature = "schema", schemars(with = "Option<Status>"))]
    pub status: Option<String>,
    /// State of a machine; only lists filter by it.
    #[serde(skip)]
    pub state: Option<String>,
    /// NAME=VALUE
    #[cfg_attr(feature = "schema", schemars(regex(pattern = LABEL)))]
    pub label: Option<String>,
    /// Only runs created at or after this: a timestamp or an age.
    pub since: Option<String>,
    /// Only runs created before this: a timestamp or an age.
    pub until: Option<String>,
}

impl RunFilter {
    /// Whether every run matches.
    pub fn is_empty(&self) -> bool {
        *self == RunFilter::default()
    }
}

/// The outcome for each run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BulkDone {
    pub items: Vec<BulkItem>,
    pub dry_run: bool,
    pub has_more: bool,
    /// `cursor` of the next page.
    pub next: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_at_least: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BulkItem {
    pub run_id: RunId,
    pub flow_name: Arc<str>,
    pub status: Status,
    /// False if this changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
    /// For a retry: the new run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ProblemDetails>,
}
