//! The files of `deploy/`: they can be read, and name only metrics that there are. Whether containers and services run
//! with them is not seen here.

use std::collections::BTreeSet;
use std::path::Path;

use granit_parser::{Event, Parser};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
const METRICS: &str = include_str!("../../../../docs/metrics.md");

fn read(file: &str) -> String {
    let path = Path::new(DEPLOY).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of metrics in a text, without the suffixes of a histogram's samples.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let bare = |word: &str| {
        let cut = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| word.strip_suffix(end));
        cut.unwrap_or(word).to_owned()
    };
    words.filter(|word| word.starts_with("flowline_")).map(bare).collect()
}

/// The metrics that the documentation has a row for.
pub fn documented() -> BTreeSet<String> {
    METRICS
        .lines()
        .filter(|line| line.starts_with("| `flowline_"))
        .flat_map(|line| metrics(line.split('|').nth(1).unwrap_or_default()))
        .collect()
}

#[test]
fn the_yaml_files_are_yaml_and_every_alias_has_its_anchor() {
    for file in ["compose.yaml", "prometheus/alerts.yaml", "prometheus/prometheus.yaml"] {
        let text = read(file);
        let mut nodes = 0;
        for event in Parser::new_from_str(&text) {
            let (event, _) = event.unwrap_or_else(|error| panic!("{file}: {error}"));
            nodes += usize::from(matches!(event, Event::Scalar(..)));
        }
        assert!(nodes > 10, "{file} is all but empty");
    }
}

#[test]
fn the_dashboard_and_the_alerts_name_only_metrics_that_there_are() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("grafana/flowline.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
    for file in ["grafana/flowline.json", "prometheus/alerts.yaml"] {
        let named = metrics(&read(file));
        assert!(named.len() >= 5, "{file}: {named:?}");
        let documented = documented();
        let unknown: Vec<&String> = named.difference(&documented).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}
