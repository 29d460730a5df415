//! One attempt: runs the handler and sends its lines until it ends or times out.

use std::time::Duration;

use crate::error::ClientError;
use crate::job::{Job, JobError};
use flowline_api::work as wire;

/// How long lines wait for others, or for the outcome.
const FLUSH: Duration = Duration::from_millis(50);

/// Runs an attempt to its end. Returns the lease instead of an outcome if this worker no longer holds it.
pub(super) async fn run(job: Job, work: super::Work) -> Result<wire::AttemptOutcome, String> {
    let assignment = job.assignment();
    let lease = assignment.lease.clone();
    let limit = assignment.timeout_ms.map(Duration::from_millis);
    let out_of_time = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let mut outcome = tokio::select! {
        biased;
        outcome = work => outcome,
        failure = flush_lines(&job) => match failure {
            Some(failure) => Err(failure),
            None => return Err(lease),
        },
        () = out_of_time => {
            let limit = flowline_types::time::format_duration(limit.unwrap_or_default());
            Err(JobError::new(format!("the attempt took longer than {limit}")).code("timeout"))
        }
    };
    match job.flush().await {
        Ok(()) => {}
        Err(error) if error.is_stale() => return Err(lease),
        Err(error) => outcome = outcome.and(Err(error.into())),
    }
    let (complete, fail) = match outcome {
        Ok(result) => (Some(wire::Completed { result, emits: job.emits() }), None),
        Err(JobError(failed)) => (None, Some(failed)),
    };
    Ok(wire::AttemptOutcome { lease, complete, fail })
}

/// Sends lines as they come. Ends when the lease is lost, or with a failure if the server refuses a line.
async fn flush_lines(job: &Job) -> Option<JobError> {
    loop {
        tokio::time::sleep(FLUSH).await;
        match job.flush().await {
            Ok(()) => {}
            Err(error) if error.is_stale() => return None,
            Err(error @ ClientError::Refused { .. }) if !error.is_transient() => {
                return Some(JobError::new(error).never().code("protocol"));
            }
            Err(_) => {}
        }
    }
}
