//! The flowline binary.
mod bench;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let shape = match args[1].as_str() {
        "chain" => bench::Shape::Chain,
        "fanout" => bench::Shape::Fanout,
        _ => bench::Shape::Diamond,
    };
    let q = bench::Question {
        shape,
        runs: args[2].parse().unwrap(),
        in_flight: args[3].parse().unwrap(),
        dir: "/tmp/bench".into(),
        payload: 100,
    };
    let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let a = rt.block_on(bench::bench(&q, Default::default())).unwrap();
    println!("{}", serde_json::to_string_pretty(&a).unwrap());
    println!(
        "ratio {:.4}  p50/commit {:.1}",
        a.steps_per_second / a.baseline.rows_per_second,
        a.latency_ms.p50 / (1000.0 / a.baseline.commits_per_second)
    );
}
