//! "Did you mean …?": the known name nearest to a mistyped one.

use crate::limits;

/// The candidate with the fewest edits from `name`, if they are at most a third of its length.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = name.chars().take(limits::NAME_BYTES + 1).collect();
    if wanted.is_empty() || wanted.len() > limits::NAME_BYTES {
        return None;
    }
    let most = (wanted.len() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let within = best.map_or(most, |(distance, _)| distance.saturating_sub(1));
        if candidate == name || candidate.len().abs_diff(name.len()) > within.saturating_mul(4) {
            continue;
        }
        if candidate.eq_ignore_ascii_case(name) {
            return Some(candidate);
        }
        let distance = edits(&wanted, &candidate.chars().collect::<Vec<_>>());
        if distance <= within {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
fn edits(a: &[char], b: &[char]) -> usize {
    let (mut before, mut last): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let same = usize::from(a[i] != b[j]);
            let mut cost = (last[j] + same).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_a_stranger_finds_none() {
        let known = ["subscribes", "emits", "order.paid", "order.shipped"];
        assert_eq!(nearest("subscribe", known), Some("subscribes"));
        assert_eq!(nearest("emtis", known), Some("emits"));
        assert_eq!(nearest("order.payed", known), Some("order.paid"));
        assert_eq!(nearest("Emits", known), Some("emits"));
        assert_eq!(nearest("invoice", known), None);
        assert_eq!(nearest("", known), None);
    }
}
