//! What a Redis server gives without Flowline, by the programs that come with it.

use tokio::process::Command;

/// Scripts that a measure runs.
const COUNT: &str = "200000";
/// The least that a script of a store does: one write.
const SCRIPT: &str = "redis.call('SET', KEYS[1], ARGV[1]) return 1";

/// Scripts of one write per second, 16 pipelined on 50 connections, as `redis-benchmark` measures them. `None` where the
/// store is no plain Redis server or the program is not there.
pub async fn scripts_per_second(url: &str) -> Option<f64> {
    let rest = url.strip_prefix("redis://")?;
    let server = format!("redis://{}", rest.split('?').next()?);
    let loaded =
        Command::new("redis-cli").args(["-u", &server, "script", "load", SCRIPT]).output().await.ok()?;
    let digest = String::from_utf8(loaded.stdout).ok().filter(|_| loaded.status.success())?;
    let mut command = Command::new("redis-benchmark");
    command.args([
        "-u",
        &server,
        "-P",
        "16",
        "-c",
        "50",
        "-n",
        COUNT,
        "--csv",
        "evalsha",
        digest.trim(),
        "1",
    ]);
    let output = command.args(["flowline-bench:__rand_int__", "x"]).output().await.ok()?;
    let removed =
        Command::new("redis-cli").args(["-u", &server, "del", "flowline-bench:__rand_int__"]).output().await;
    drop(removed);
    // A line of titles, then one of figures: the name, then the rate.
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().rev().find(|line| line.contains("evalsha"))?;
    line.split('"').find_map(|part| part.parse::<f64>().ok())
}
