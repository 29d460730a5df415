//! What went wrong, as RFC 9457 writes it. Every answer that is not good has this shape.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flowline::EngineError;
use flowline::core::decide::Refusal;
use flowline::core::json::JsonError;
use flowline::store::StoreError;
use serde_json::{Value, json};

use super::codes::{self, Code};

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// When to try again while the store is away.
const RETRY_AFTER: &str = "1";

#[derive(Debug)]
pub struct Problem {
    pub code: &'static Code,
    pub detail: String,
    /// Places in the request, by JSON pointer or by the name of a parameter.
    errors: Vec<Value>,
    diagnostics: Option<Value>,
    /// Members of this kind of problem.
    more: Vec<(&'static str, Value)>,
}

impl Problem {
    pub fn new(code: &'static Code, detail: impl Into<String>) -> Problem {
        Problem { code, detail: detail.into(), errors: Vec::new(), diagnostics: None, more: Vec::new() }
    }

    /// Names a place in the body.
    pub fn at(mut self, pointer: &str) -> Problem {
        self.errors.push(json!({ "pointer": pointer, "detail": self.detail }));
        self
    }

    /// Adds a member that this kind of problem has.
    pub fn with(mut self, name: &'static str, value: Value) -> Problem {
        self.more.push((name, value));
        self
    }

    pub fn parameter(name: &str, detail: impl Into<String>) -> Problem {
        let mut problem = Problem::new(&codes::BAD_PARAMETER, detail);
        problem.errors.push(json!({ "parameter": name, "detail": problem.detail }));
        problem
    }

    pub fn no_such_run(run: &str) -> Problem {
        Problem::new(&codes::NO_SUCH_RUN, format!("there is no run {run}"))
    }

    pub fn no_such_flow(flow: &str) -> Problem {
        Problem::new(&codes::NO_SUCH_FLOW, format!("there is no flow {flow:?}"))
    }

    pub fn to_json(&self) -> Value {
        let code = self.code;
        let mut body = json!({
            "type": format!("/errors/{}", code.code),
            "title": code.title,
            "status": code.status,
            "detail": self.detail,
            "code": code.code,
        });
        if !self.errors.is_empty() {
            body["errors"] = Value::Array(self.errors.clone());
        }
        if let Some(diagnostics) = &self.diagnostics {
            body["diagnostics"] = diagnostics.clone();
        }
        self.more.iter().for_each(|(name, value)| body[*name] = value.clone());
        body
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, self.to_json().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        match self.code.status {
            401 => drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            429 | 503 => drop(headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER))),
            _ => {}
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let code = match &error {
            StoreError::Unavailable(_) | StoreError::CannotWrite(_) | StoreError::WentBack(_) => {
                &codes::UNAVAILABLE
            }
            StoreError::Invalid(_) => &codes::INVALID,
            _ => &codes::STORE,
        };
        Problem::new(code, error.to_string())
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Problem {
        let text = error.to_string();
        let code = match error {
            EngineError::Store(error) => return error.into(),
            EngineError::Definition(diagnostics) => {
                let mut problem = Problem::new(&codes::DEFINITION, text);
                problem.diagnostics = Some(diagnostics.to_json());
                return problem;
            }
            EngineError::Plan(_) => &codes::DEFINITION,
            EngineError::NoSuchRun(_) => &codes::NO_SUCH_RUN,
            EngineError::NotEnded(_) => &codes::RUN_NOT_ENDED,
            EngineError::NoSuchFlow(_) | EngineError::NoSuchVersion { .. } => &codes::NO_SUCH_FLOW,
            EngineError::Retired(_) => &codes::FLOW_RETIRED,
            EngineError::Refused(refusal) => return refusal.into(),
            EngineError::KeyConflict { .. } => &codes::KEY_CONFLICT,
            EngineError::StaleLease(_) => &codes::STALE_LEASE,
            EngineError::Stopped => &codes::STOPPING,
            _ => &codes::INVALID,
        };
        Problem::new(code, text)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let text = refusal.to_string();
        let code = match refusal {
            Refusal::Ended(_) => &codes::RUN_ENDED,
            Refusal::NotAccepted { .. } => &codes::NO_SUCH_EVENT,
            Refusal::Forbidden { .. } => &codes::ROLE,
            Refusal::InboxFull => &codes::INBOX_FULL,
            Refusal::OtherOutcome { .. } => &codes::OUTCOME_CONFLICT,
            Refusal::Expression { .. } => &codes::INVALID,
            Refusal::Schema { what, problem } => {
                // The breach names its place within the value; in the request that has a place of its own.
                let root = if what == "the input" { "/input" } else { "/payload" };
                let place = problem.split(": ").next().unwrap_or_default().trim_end_matches('/');
                return Problem::new(&codes::SCHEMA, text).at(&format!("{root}{place}"));
            }
            Refusal::Payload(error) => return error.into(),
            _ => &codes::REFUSED,
        };
        Problem::new(code, text)
    }
}

impl From<JsonError> for Problem {
    fn from(error: JsonError) -> Problem {
        let code = if matches!(error, JsonError::Size { .. }) { &codes::TOO_LARGE } else { &codes::BAD_BODY };
        Problem::new(code, error.to_string())
    }
}
