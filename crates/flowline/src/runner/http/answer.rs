//! What a response means for the step: its result, or a failure that may be retried or not.

use std::time::{Duration, SystemTime};

use flowline_core::definition::HttpRequest;
use flowline_core::json::{self, Json};
use flowline_core::limits::Limit;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, LOCATION, RETRY_AFTER};

use super::connect::HttpTarget;
use super::exchange::{StepResponse, means_later};
use crate::step::StepError;

/// The longest that a server can put the next try off.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Characters of an answer that an error repeats.
const EXCERPT: usize = 300;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum HttpOutcome {
    Done(Json),
    /// Somebody will say.
    Later,
}

pub(super) fn judge(
    answer: &StepResponse,
    target: &HttpTarget,
    request: &HttpRequest,
    limit: Limit,
) -> Result<HttpOutcome, StepError> {
    match answer.status {
        status if means_later(status, request) => Ok(HttpOutcome::Later),
        status if status.is_success() => result(answer, target, limit).map(HttpOutcome::Done),
        status if status.is_redirection() => {
            let to =
                answer.headers.get(LOCATION).map(|to| String::from_utf8_lossy(to.as_bytes()).into_owned());
            let to = to.map_or_else(String::new, |to| format!(" to {}", shown(&to)));
            let text = format!(
                "{target} redirects{to} ({}); redirects aren't followed; call that URL instead",
                status.as_u16()
            );
            Err(StepError::fatal(text).code("redirect"))
        }
        status => Err(refused(answer, status, target)),
    }
}

fn result(answer: &StepResponse, target: &HttpTarget, limit: Limit) -> Result<Json, StepError> {
    if answer.body.is_empty() {
        return Ok(Json::null());
    }
    let unreadable =
        |why: &str| StepError::new(format!("{target} responded with {why}")).code("bad_response");
    let text = std::str::from_utf8(&answer.body).map_err(|_| unreadable("a body that isn't valid UTF-8"))?;
    let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let json = match kind {
        Some(kind) if is_json(kind) => {
            Json::parse(text).map_err(|error| unreadable(&format!("a body that is {error}")))?
        }
        // Nothing says what it is.
        None => Json::parse(text).unwrap_or_else(|_| json::string(text)),
        Some(_) => json::string(text),
    };
    let limited = json.within("the response, as JSON,", limit);
    limited.map_err(|error| StepError::fatal(error).code("too_large"))
}

/// `application/json`, `application/problem+json; charset=utf-8` …
fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind == "text/json" || kind.ends_with("+json")
}

fn refused(answer: &StepResponse, status: StatusCode, target: &HttpTarget) -> StepError {
    let body = shown(&String::from_utf8_lossy(&answer.body));
    let body = if body.is_empty() { body } else { format!(": {body}") };
    let text = format!("{target} responded with {status}{body}");
    let code = format!("http_{}", status.as_u16());
    let passing = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
    if !passing {
        return StepError::fatal(text).code(&code);
    }
    let error = StepError::new(text).code(&code);
    match wait(&answer.headers, SystemTime::now()) {
        Some(wait) => error.retry_after(wait),
        None => error,
    }
}

/// How long the server asks to be left alone: in seconds, or until a date. Where that is no time at all the step's own
/// policy decides.
fn wait(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).ok()?,
    };
    Some(wait.min(LONGEST_WAIT)).filter(|wait| !wait.is_zero())
}

/// The beginning of a text from outside, in one line.
fn shown(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = line.trim();
    match line.char_indices().nth(EXCERPT) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_can_ask_for_patience_in_seconds_or_by_date_and_not_for_ever() {
        let now = httpdate::parse_http_date("Sun, 15 Nov 2026 10:00:00 GMT").unwrap();
        let asked = |value: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, value.parse().unwrap())]);
            wait(&headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!(asked("120"), Some(120));
        assert_eq!(asked("Sun, 15 Nov 2026 10:02:03 GMT"), Some(123));
        assert_eq!(asked("99999999999"), Some(3600));
        assert_eq!(asked("Sun, 15 Nov 2099 10:02:03 GMT"), Some(3600));
        for nothing in ["0", "Sun, 15 Nov 2020 10:00:00 GMT", "soon", "-1", ""] {
            assert_eq!(asked(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn an_excerpt_is_one_short_line() {
        assert_eq!(shown(" a\nb\u{7} "), "a b");
        assert_eq!(shown(&"é".repeat(1000)).chars().count(), EXCERPT + 1);
    }
}
