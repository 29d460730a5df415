//! The metrics as Prometheus would read them, and that they move.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::kit::served::Served;

const FLOW: &str = r#"
flow: order
steps:
  check: { command: [sh, -c, 'echo "{\"result\": 1}"'], returns: order.checked }
  pack: { subscribes: [order.checked], command: [sh, -c, 'exit 0'] }
"#;
const DOOMED: &str = "flow: doomed\nsteps:\n  fall: { command: [sh, -c, 'exit 4'] }\n";
const IDLE: &str = "flow: idle\nsteps:\n  ship: { worker: depot }\n";

/// A scrape, read strictly: samples by their name and labels.
struct Scrape {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Scrape {
    fn of(text: &str) -> Scrape {
        assert!(text.ends_with('\n'));
        let mut scrape = Scrape { kinds: BTreeMap::new(), samples: BTreeMap::new() };
        let (mut helped, mut current) = (BTreeSet::new(), String::new());
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, about) = help.split_once(' ').expect("a help text");
                assert!(!about.is_empty() && helped.insert(name.to_owned()), "{line}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(helped.contains(name) && name.starts_with("flowline_"), "{line}");
                assert!(scrape.kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
                current = name.to_owned();
            } else {
                scrape.sample(line, &current);
            }
        }
        scrape.check_histograms();
        scrape
    }

    fn sample(&mut self, line: &str, family: &str) {
        let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("{line}"));
        let (labels, value) = rest.rsplit_once("} ").unwrap_or_else(|| panic!("{line}"));
        let of = name.strip_prefix(family).unwrap_or_else(|| panic!("{line} is not of {family}"));
        let suffixes: &[&str] =
            if self.kinds[family] == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(suffixes.contains(&of), "{line}");
        let mut read = BTreeMap::new();
        for label in labels.split("\",") {
            let (label, value) =
                label.trim_end_matches('"').split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
            assert!(read.insert(label.to_owned(), value.to_owned()).is_none(), "{line}");
        }
        assert!(read.remove("instance_id").is_some_and(|name| !name.is_empty()), "{line}");
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(self.samples.insert((name.to_owned(), read), value).is_none(), "{line} is there twice");
    }

    /// Buckets never fall, and the last holds all.
    fn check_histograms(&self) {
        for (name, _) in self.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut series: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
            for ((of, labels), count) in &self.samples {
                if *of == format!("{name}_bucket") {
                    let mut labels = labels.clone();
                    let le = labels.remove("le").expect("a bound");
                    let le = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
                    series.entry(labels).or_default().push((le, *count));
                }
            }
            for (labels, mut buckets) in series {
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name} {labels:?}");
                let all = self.samples[&(format!("{name}_count"), labels.clone())];
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, all)), "{name} {labels:?}");
                assert!(self.samples.contains_key(&(format!("{name}_sum"), labels)), "{name}");
            }
        }
    }

    fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        *self
            .samples
            .get(&(name.to_owned(), labels))
            .unwrap_or_else(|| panic!("no {name} in {:?}", self.samples))
    }
}

fn scrape(served: &Served) -> Scrape {
    let reply = served.get("/metrics");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    Scrape::of(&reply.body)
}

#[test]
fn metrics_are_well_formed_and_move_with_what_they_count() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--allow-commands"]);
    for flow in [FLOW, DOOMED, IDLE] {
        served.register(flow);
    }
    let before = scrape(&served);
    assert_eq!(before.get("flowline_commits_total", &[]), 0.0);
    assert_eq!(before.get("flowline_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    let key = json!({ "idempotencyKey": "one" });
    let run = served.post("/v1/flows/order/runs?wait=60s", &key).json();
    assert_eq!(run["status"], "completed", "{run}");
    assert_eq!(served.post("/v1/flows/order/runs?wait=60s", &key).status, 200);
    assert_eq!(served.post("/v1/flows/doomed/runs?wait=60s", &json!({})).json()["status"], "failed");
    served.post("/v1/flows/idle/runs", &json!({}));
    assert_eq!(served.send("BREW", "/nowhere", &[], "").status, 404);
    let after = scrape(&served);
    // A start and two outcomes, a start and one, a start.
    assert!(after.get("flowline_commits_total", &[]) >= 6.0);
    assert!(after.get("flowline_commit_seconds_count", &[]) >= 1.0);
    assert!(after.get("flowline_decide_seconds_count", &[]) >= 1.0);
    assert_eq!(after.get("flowline_queue_wait_seconds_count", &[]), 3.0);
    assert_eq!(after.get("flowline_attempt_seconds_count", &[("outcome", "completed")]), 2.0);
    assert_eq!(after.get("flowline_attempt_seconds_count", &[("outcome", "failed")]), 1.0);
    assert_eq!(after.get("flowline_duplicates_refused_total", &[("kind", "exists")]), 1.0);
    assert_eq!(after.get("flowline_runs_ended_total", &[("status", "completed")]), 1.0);
    assert_eq!(after.get("flowline_runs_ended_total", &[("status", "failed")]), 1.0);
    assert_eq!(after.get("flowline_runs", &[("status", "running")]), 1.0);
    assert_eq!(after.get("flowline_queue_jobs", &[("queue", "depot"), ("state", "ready")]), 1.0);
    assert_eq!(after.get("flowline_store_up", &[]), 1.0);
    let starts = [("method", "POST"), ("route", "/v1/flows/{flow}/runs"), ("status", "201")];
    assert_eq!(after.get("flowline_http_requests_total", &starts), 1.0);
    let unknown = [("method", "other"), ("route", "unmatched"), ("status", "404")];
    assert_eq!(after.get("flowline_http_requests_total", &unknown), 1.0);
    let documented = crate::http::deploy::documented();
    assert!(
        after.kinds.keys().all(|name| documented.contains(name)),
        "{:?} lacks one of {:?}",
        documented,
        after.kinds
    );
    let run = run["runId"].as_str().unwrap();
    assert!(after.samples.keys().all(|(_, labels)| labels.values().all(|value| value != run)));
}

#[test]
fn a_run_that_nobody_works_on_shows_as_stuck_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--stuck-after", "1ms"]);
    served.register(IDLE);
    served.post("/v1/flows/idle/runs", &json!({}));
    std::thread::sleep(std::time::Duration::from_millis(50));
    let scrape = scrape(&served);
    assert_eq!(scrape.get("flowline_stuck_runs", &[("reason", "unclaimed")]), 1.0);
    assert_eq!(scrape.get("flowline_stuck_runs", &[("reason", "no_job")]), 0.0);
    assert_eq!(scrape.get("flowline_stuck_runs_capped", &[]), 0.0);
}

#[test]
fn a_token_sees_the_runs_and_queues_of_its_own_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let [mine, theirs] = ["mine", "theirs"]
        .map(|tenant| crate::http::access::token(folder.path(), tenant, &["--scope", "admin"]));
    let served = Served::start(folder.path(), &["--auth", "tokens"]);
    assert_eq!(served.get("/metrics").code(), "unauthorized");
    let bearer = |token: &str| format!("Bearer {token}");
    let as_theirs = bearer(&theirs);
    let send = |method, path, kind, body: &str| {
        let reply = served.send(method, path, &[("authorization", &as_theirs), ("content-type", kind)], body);
        assert!(reply.status < 300, "{reply:?}");
    };
    send("POST", "/v1/flows", "application/yaml", IDLE);
    send("POST", "/v1/flows/idle/runs", "application/json", "{}");
    let of = |token: &str| {
        Scrape::of(&served.send("GET", "/metrics", &[("authorization", &bearer(token))], "").body)
    };
    assert_eq!(of(&theirs).get("flowline_runs", &[("status", "running")]), 1.0);
    let mine = of(&mine);
    assert_eq!(mine.get("flowline_runs", &[("status", "running")]), 0.0);
    assert!(!mine.samples.keys().any(|(name, _)| name == "flowline_queue_jobs"));
}

#[test]
fn no_secret_and_no_payload_shows_in_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let token = crate::http::access::token(folder.path(), "default", &["--scope", "admin"]);
    let served = Served::start(folder.path(), &["--auth", "tokens", "--allow-commands"]);
    let bearer = format!("Bearer {token}");
    let send = |path: &str, kind: &str, body: &str| {
        served.send("POST", path, &[("authorization", &bearer), ("content-type", kind)], body)
    };
    let leaky = "flow: leaky\nsteps:\n  tell: { command: [sh, -c, 'echo hush-output; echo hush-error >&2; exit 3'] }\n  wait: { worker: depot }\n";
    assert_eq!(send("/v1/flows", "application/yaml", leaky).status, 201);
    let start =
        json!({ "input": "hush-input", "labels": { "who": "hush-label" }, "idempotencyKey": "hush-key" });
    assert_eq!(send("/v1/flows/leaky/runs", "application/json", &start.to_string()).status, 201);
    let claim = json!({ "worker": "w1", "queues": ["depot"] }).to_string();
    let job = send("/v1/work/claim", "application/json", &claim).json()["jobs"][0].clone();
    let fail = json!({ "lease": job["lease"], "fail": { "error": "hush-failure", "code": "hush-code", "stack": "hush-stack" } });
    let outcomes = json!({ "outcomes": [fail] }).to_string();
    assert_eq!(send("/v1/work/complete", "application/json", &outcomes).status, 200);
    assert_eq!(send("/v1/hush-path", "application/json", "\"hush-body\"").status, 404);
    let failed = format!("/v1/runs/{}/result?wait=30s", job["runId"].as_str().unwrap());
    assert_eq!(
        served.send("GET", &failed, &[("authorization", &bearer)], "").json()["status"],
        "failed",
        "all of it has happened"
    );
    let page = served.send("GET", "/metrics", &[("authorization", &bearer)], "").body;
    assert!(Scrape::of(&page).get("flowline_runs_ended_total", &[("status", "failed")]) > 0.0);
    for secret in ["hush", token.as_str(), token.trim_start_matches("fl_"), job["lease"].as_str().unwrap()] {
        assert!(!page.contains(secret), "{secret} in {page}");
    }
}
