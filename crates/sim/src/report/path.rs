//! The longest way through a flow, from its definition alone.

use std::collections::BTreeMap;
use std::time::Duration;

use flowline_core::definition::{Backoff, Definition, StepDefinition, Subscribes};
use serde::{Serialize, Serializer};

/// The longest way in steps, and the longest in declared time.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LongestPath {
    pub steps: Vec<String>,
    /// The way that takes longest where every try runs out of its time and every retry is used.
    pub slowest: Vec<String>,
    /// How long that is.
    #[serde(rename = "slowestMs", serialize_with = "millis")]
    pub time: Duration,
    /// Steps on it without a time-out: they may take any time.
    pub without_timeout: Vec<String>,
}

impl LongestPath {
    pub fn of(flow: &Definition) -> LongestPath {
        let before = before(flow);
        let order = in_order(&before);
        let steps = longest(&before, &order, |_| 1);
        let ms = |at: usize| longest_try(&flow.steps[at]).as_millis().min(u128::from(u64::MAX)) as u64;
        let slowest = longest(&before, &order, ms);
        let name = |path: &[usize]| path.iter().map(|&at| flow.steps[at].name.clone()).collect();
        let open = slowest.iter().filter(|&&at| flow.steps[at].timeout.is_none());
        LongestPath {
            steps: name(&steps),
            time: slowest.iter().map(|&at| longest_try(&flow.steps[at])).sum(),
            without_timeout: open.map(|&at| flow.steps[at].name.clone()).collect(),
            slowest: name(&slowest),
        }
    }
}

/// All tries of a step with the pauses between them; a step without a time-out counts its pauses only.
pub(crate) fn longest_try(step: &StepDefinition) -> Duration {
    let retry = &step.retry;
    let pauses = (1..retry.attempts).map(|tries| {
        let factor = match retry.backoff {
            Backoff::Fixed => 1,
            Backoff::Linear => tries,
            Backoff::Exponential => 1u32.checked_shl(tries - 1).unwrap_or(u32::MAX),
        };
        retry.delay.saturating_mul(factor).min(retry.max_delay)
    });
    let pauses: Duration = pauses.sum();
    step.timeout.map_or(Duration::ZERO, |timeout| timeout.saturating_mul(retry.attempts)) + pauses
}

/// For each step, those that it may wait for.
fn before(flow: &Definition) -> Vec<Vec<usize>> {
    let mut emitters: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut steps: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, step) in flow.steps.iter().enumerate() {
        steps.insert(&step.name, at);
        step.published().for_each(|event| emitters.entry(event).or_default().push(at));
    }
    let sources = |step: &StepDefinition| {
        let mut sources = Vec::new();
        for leaf in step.subscribes.iter().flat_map(Subscribes::leaves) {
            match leaf {
                Subscribes::Event(event) => {
                    sources.extend(emitters.get(event.as_str()).into_iter().flatten())
                }
                Subscribes::Step(name) => sources.extend(steps.get(name.as_str())),
                Subscribes::All(_) | Subscribes::Any(_) => {}
            }
        }
        sources.sort();
        sources.dedup();
        sources
    };
    flow.steps.iter().map(sources).collect()
}

/// Every step after those that it may wait for.
fn in_order(before: &[Vec<usize>]) -> Vec<usize> {
    let mut after = vec![Vec::new(); before.len()];
    for (at, sources) in before.iter().enumerate() {
        sources.iter().for_each(|&source| after[source].push(at));
    }
    let mut left: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut order: Vec<usize> = (0..before.len()).filter(|&at| left[at] == 0).collect();
    let mut next = 0;
    while next < order.len() {
        for &at in &after[order[next]] {
            left[at] -= 1;
            if left[at] == 0 {
                order.push(at);
            }
        }
        next += 1;
    }
    order
}

/// The way with the greatest sum; of equal ones the one with more steps.
fn longest(before: &[Vec<usize>], order: &[usize], cost: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut best: Vec<(u64, usize, Option<usize>)> = vec![(0, 0, None); before.len()];
    for &at in order {
        let from = before[at].iter().copied().max_by_key(|&source| (best[source].0, best[source].1));
        let (sum, length) = from.map_or((0, 0), |source| (best[source].0, best[source].1));
        best[at] = (sum.saturating_add(cost(at)), length + 1, from);
    }
    // The first of the file among equals.
    let last = order.iter().copied().max_by_key(|&at| (best[at].0, best[at].1, std::cmp::Reverse(at)));
    let mut path = Vec::new();
    let mut at = last;
    while let Some(step) = at {
        path.push(step);
        at = best[step].2;
    }
    path.reverse();
    path
}

fn millis<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flowline_core::definition::{Format, read};

    fn path(text: &str) -> LongestPath {
        let read =
            read("flow.yaml", text, Format::Yaml).unwrap_or_else(|wrong| panic!("{}", wrong.render(false)));
        LongestPath::of(&read.definition)
    }

    #[test]
    fn the_longest_path_is_found_in_steps_and_in_time() {
        let path = path(
            "flow: f\nsteps:\n\
             \x20 a: { command: [x], returns: a.done }\n\
             \x20 slow: { command: [x], subscribes: a.done, timeout: 1h }\n\
             \x20 b: { command: [x], subscribes: a.done, returns: b.done, timeout: 1m, retry: { attempts: 3, delay: 1s, backoff: exponential } }\n\
             \x20 c: { command: [x], subscribes: [a.done, b.done], timeout: 1m }\n",
        );
        assert_eq!(path.steps, ["a", "b", "c"]);
        assert_eq!(
            (path.slowest, path.time),
            (vec!["a".to_owned(), "slow".to_owned()], Duration::from_secs(3_600))
        );
        assert_eq!(path.without_timeout, ["a"]);
    }

    #[test]
    fn retries_and_their_pauses_count() {
        let path = path(
            "flow: f\nsteps:\n  a: { command: [x], timeout: 10s, retry: { attempts: 4, delay: 1s, max_delay: 3s } }\n",
        );
        assert_eq!(path.time, Duration::from_secs(4 * 10 + 1 + 2 + 3));
    }
}
