//! Which runs, as people write it in flags, query strings and bodies: one filter, read by one function.

use std::time::Duration;

use flowline::core::time::parse_duration;
use flowline::core::{Status, Tenant, Time};
use flowline::store::RunQuery;
pub use flowline_api::runs::RunFilter;

/// A part of a filter that can't be read.
#[derive(Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The name of the flag, parameter or field.
    pub name: &'static str,
    /// What's wrong with it.
    pub problem: String,
}

/// The question that a filter asks of a store. Ages count back from `now`.
pub fn query(filter: &RunFilter, tenant: Tenant, now: Time) -> Result<RunQuery, FilterError> {
    let label = |text: &str| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let time = |text: &str| moment(text, now);
    Ok(RunQuery {
        flow: filter.flow.clone(),
        status: part("status", &filter.status, STATUSES, Status::parse)?,
        state: filter.state.clone(),
        label: part("label", &filter.label, "NAME=VALUE (team=billing)", label)?,
        since: part("since", &filter.since, MOMENT, time)?,
        until: part("until", &filter.until, MOMENT, time)?,
        ..RunQuery::of(tenant)
    })
}

/// Refuses what [`query`] would.
pub fn check(filter: &RunFilter) -> Result<(), FilterError> {
    query(filter, Tenant::default(), Time::default()).map(drop)
}

const STATUSES: &str = "one of running, waiting, paused, completed, failed, cancelled";
/// What a time looks like.
pub const MOMENT: &str = "a timestamp (2026-01-31T12:00:00Z) or an age (24h)";

fn part<T>(
    name: &'static str,
    text: &Option<String>,
    expected: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, FilterError> {
    let Some(text) = text else { return Ok(None) };
    let problem = || FilterError { name, problem: format!("{text:?} isn't {expected}") };
    read(text).map(Some).ok_or_else(problem)
}

/// Reads a duration; the message shows what one looks like.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| format!("{text:?} isn't a duration (250ms, 30s, 5m, 1h, 7d, 1h30m)"))
}

/// A timestamp, or a duration before now.
pub fn moment(text: &str, now: Time) -> Option<Time> {
    parse_duration(text).map(|ago| now.before(ago)).or_else(|| Time::parse(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_says_which_part_of_it_is_wrong() {
        let some = |text: &str| Some(text.to_owned());
        let wrong = [
            (RunFilter { status: some("done"), ..RunFilter::default() }, "status", "one of running"),
            (RunFilter { label: some("team"), ..RunFilter::default() }, "label", "NAME=VALUE"),
            (RunFilter { since: some("soon"), ..RunFilter::default() }, "since", "or an age"),
            (RunFilter { until: some("soon"), ..RunFilter::default() }, "until", "or an age"),
        ];
        for (filter, name, expected) in wrong {
            let error = check(&filter).expect_err(name);
            assert!(error.name == name && error.problem.contains(expected), "{error:?}");
        }
    }

    #[test]
    fn ages_count_back_from_now() {
        let now = Time::from_millis(100_000);
        let filter = RunFilter { since: Some("40s".to_owned()), ..RunFilter::default() };
        let query = query(&filter, Tenant::default(), now).expect("a filter");
        assert_eq!((query.since, query.until), (Some(Time::from_millis(60_000)), None));
    }
}
