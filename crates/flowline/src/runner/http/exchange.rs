//! One request and its response on a connection.
//!
//! The response is read up to the limit for payloads and no further.

use std::time::Duration;

use flowline_core::definition::HttpRequest;
use flowline_core::error::with_causes;
use flowline_core::limits::Limit;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use super::connect::{HttpTarget, Stream};
use crate::step::StepError;

/// How much of an answer is read that is not a success, and how long that may take: enough to say in the error what it
/// says.
const EXCERPT: usize = 4 << 10;
const EXCERPT_TIME: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct StepResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

pub(super) async fn exchange(
    stream: Box<dyn Stream>,
    message: Request<Full<Bytes>>,
    target: &HttpTarget,
    request: &HttpRequest,
    limit: Limit,
) -> Result<StepResponse, StepError> {
    let lost = |error: hyper::Error| lost(&error, target);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
    let answer = async {
        let response = sender.send_request(message).await.map_err(lost)?;
        read(response, target, request, limit).await
    };
    tokio::pin!(connection, answer);
    // The connection is what moves bytes; what it has read is there even when it has ended.
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}

async fn read(
    response: Response<Incoming>,
    target: &HttpTarget,
    request: &HttpRequest,
    limit: Limit,
) -> Result<StepResponse, StepError> {
    let (head, mut incoming) = response.into_parts();
    let mut body = Vec::new();
    let answer = |body| StepResponse { status: head.status, headers: head.headers, body };
    if means_later(head.status, request) {
        return Ok(answer(body));
    }
    if !head.status.is_success() {
        let excerpt = async {
            while body.len() < EXCERPT
                && let Some(Ok(frame)) = incoming.frame().await
            {
                body.extend_from_slice(&frame.into_data().unwrap_or_default());
            }
        };
        // What is lost of it is only missing in the error.
        let _ = tokio::time::timeout(EXCERPT_TIME, excerpt).await;
        body.truncate(EXCERPT);
        return Ok(answer(body));
    }
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|error| lost(&error, target))?;
        body.extend_from_slice(&frame.into_data().unwrap_or_default());
        if body.len() > limit.bytes {
            let text = format!(
                "the response of {target} is over {} bytes, the limit for a result (setting {})",
                limit.bytes, limit.setting
            );
            return Err(StepError::fatal(text).code("too_large"));
        }
    }
    Ok(answer(body))
}

/// Whether an answer says that the outcome comes later.
pub(super) fn means_later(status: StatusCode, request: &HttpRequest) -> bool {
    request.callback && status == StatusCode::ACCEPTED
}

fn lost(error: &hyper::Error, target: &HttpTarget) -> StepError {
    let why = with_causes(error);
    StepError::new(format!("the connection to {target} was lost: {why}")).code("connection_lost")
}
