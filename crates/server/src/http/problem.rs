//! What went wrong, as RFC 9457 writes it. Every answer that is not good has this shape.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flowline::EngineError;
use flowline::core::decide::Refusal;
use flowline::core::json::JsonError;
use flowline::store::StoreError;
use flowline_api::ProblemDetails;
use flowline_api::problem::{DiagnosticList, ProblemPlace};

use super::codes::{self, Code};

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// When to try again if nothing else is known, in seconds.
const RETRY_AFTER: u64 = 1;

#[derive(Debug)]
pub struct ApiError {
    pub code: &'static Code,
    details: Box<ProblemDetails>,
    retry_after: Option<Duration>,
}

impl ApiError {
    pub fn new(code: &'static Code, detail: impl Into<String>) -> ApiError {
        let details = ProblemDetails {
            kind: format!("/errors/{}", code.code),
            title: code.title.to_owned(),
            status: code.status,
            detail: detail.into(),
            code: code.code.to_owned(),
            ..ProblemDetails::default()
        };
        ApiError { code, details: Box::new(details), retry_after: None }
    }

    /// Names a place in the body.
    pub fn at(self, pointer: &str) -> ApiError {
        self.with(|details| {
            let detail = details.detail.clone();
            details.errors.push(ProblemPlace { pointer: Some(pointer.to_owned()), parameter: None, detail });
        })
    }

    /// Adds what only this kind of problem has.
    pub fn with(mut self, add: impl FnOnce(&mut ProblemDetails)) -> ApiError {
        add(&mut self.details);
        self
    }

    /// Says when to try again.
    pub fn retry_after(self, wait: Duration) -> ApiError {
        ApiError { retry_after: Some(wait), ..self }
    }

    pub fn parameter(name: &str, detail: impl Into<String>) -> ApiError {
        ApiError::new(&codes::BAD_PARAMETER, detail).with(|details| {
            let detail = details.detail.clone();
            details.errors.push(ProblemPlace { pointer: None, parameter: Some(name.to_owned()), detail });
        })
    }

    pub fn no_such_run(run: &str) -> ApiError {
        ApiError::new(&codes::NO_SUCH_RUN, format!("there is no run {run}"))
    }

    pub fn no_such_flow(flow: &str) -> ApiError {
        ApiError::new(&codes::NO_SUCH_FLOW, format!("there is no flow {flow:?}"))
    }

    pub fn into_details(self) -> ProblemDetails {
        *self.details
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(&self.details)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        match self.code.status {
            401 => drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            429 | 503 => {
                // In whole seconds, and never before it can help.
                let wait = self.retry_after.map_or(RETRY_AFTER, |wait| wait.as_secs_f64().ceil() as u64);
                headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.max(1)));
            }
            _ => {}
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> ApiError {
        let code = match &error {
            StoreError::Unavailable(_) | StoreError::CannotWrite(_) | StoreError::WentBack(_) => {
                &codes::UNAVAILABLE
            }
            StoreError::Invalid(_) => &codes::INVALID,
            _ => &codes::STORE,
        };
        ApiError::new(code, error.to_string())
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        let text = error.to_string();
        let code = match error {
            EngineError::Store(error) => return error.into(),
            EngineError::Quota { retry_after, .. } => {
                let error = ApiError::new(&codes::QUOTA_EXCEEDED, text);
                return ApiError { retry_after, ..error };
            }
            EngineError::Definition(diagnostics) => {
                return ApiError::new(&codes::DEFINITION, text).with(|details| {
                    details.diagnostics = Some(DiagnosticList(diagnostics.to_json().into()))
                });
            }
            EngineError::Plan(_) => &codes::DEFINITION,
            EngineError::NoSuchRun(_) => &codes::NO_SUCH_RUN,
            EngineError::NotEnded(_) => &codes::RUN_NOT_ENDED,
            EngineError::NoSuchFlow(_) | EngineError::NoSuchVersion { .. } => &codes::NO_SUCH_FLOW,
            EngineError::Retired(_) => &codes::FLOW_RETIRED,
            EngineError::Refused(refusal) => return refusal.into(),
            EngineError::KeyConflict { .. } => &codes::KEY_CONFLICT,
            EngineError::BeyondBinding(_) => &codes::FORBIDDEN,
            EngineError::StaleLease(_) => &codes::STALE_LEASE,
            EngineError::LogFull(_) => &codes::LOG_FULL,
            EngineError::Stopped => &codes::STOPPING,
            _ => &codes::INVALID,
        };
        ApiError::new(code, text)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        let text = refusal.to_string();
        let code = match refusal {
            Refusal::Ended(_) => &codes::RUN_ENDED,
            Refusal::NotAccepted { .. } => &codes::NO_SUCH_EVENT,
            Refusal::Forbidden { .. } => &codes::ROLE,
            Refusal::InboxFull => &codes::INBOX_FULL,
            Refusal::OtherOutcome { .. } => &codes::OUTCOME_CONFLICT,
            Refusal::Expression { .. } => &codes::INVALID,
            Refusal::TooCostly { .. } => &codes::TOO_COSTLY,
            Refusal::Schema { what, problem } => {
                // The breach names its place within the value; in the request that has a place of its own.
                let root = if what == "the input" { "/input" } else { "/payload" };
                let place = problem.split(": ").next().unwrap_or_default().trim_end_matches('/');
                return ApiError::new(&codes::SCHEMA, text).at(&format!("{root}{place}"));
            }
            Refusal::Payload(error) => return error.into(),
            _ => &codes::REFUSED,
        };
        ApiError::new(code, text)
    }
}

impl From<JsonError> for ApiError {
    fn from(error: JsonError) -> ApiError {
        let code = if matches!(error, JsonError::Size { .. }) { &codes::TOO_LARGE } else { &codes::BAD_BODY };
        ApiError::new(code, error.to_string())
    }
}
