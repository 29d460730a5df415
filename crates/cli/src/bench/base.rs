//! What a server gives without Flowline, by the programs that come with it: `redis-benchmark`, `pgbench`.

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

/// Seconds that `pgbench` runs for.
const SECONDS: &str = "5";

/// Transactions of `pgbench -N` per second (an update, a select and an insert each) with 16 clients, in a schema of their own
/// beside the store, which is removed again. `None` where the store is no PostgreSQL server or the programs are not there.
pub async fn transactions_per_second(url: &str) -> Option<f64> {
    let server = Libpq::of(url)?;
    let schema = format!("flowline_bench_{}", std::process::id());
    server.sql(&format!("create schema {schema}")).await?;
    let measured = server.pgbench(&schema).await;
    server.sql(&format!("drop schema {schema} cascade")).await?;
    measured
}

/// A PostgreSQL server as its own programs are told of it. The password goes by the environment, which others cannot read.
struct Libpq {
    url: String,
    password: Option<String>,
}

impl Libpq {
    fn of(url: &str) -> Option<Libpq> {
        let rest = url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, place) = place.rsplit_once('@')?;
        let (user, password) = match user.split_once(':') {
            // As a field of a form, but that a plus is a plus.
            Some((user, password)) => {
                let field = format!("={}", password.replace('+', "%2B"));
                let decoded = form_urlencoded::parse(field.as_bytes()).next()?.1.into_owned();
                (user, Some(decoded))
            }
            None => (user, None),
        };
        let foreign: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("schema=")).collect();
        Some(Libpq { url: format!("postgres://{user}@{place}?{}", foreign.join("&")), password })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if let Some(password) = &self.password {
            command.env("PGPASSWORD", password);
        }
        command
    }

    async fn sql(&self, sql: &str) -> Option<()> {
        let mut command = self.command("psql");
        let output = command.args(["-X", "-q", "-c", sql, &self.url]).output().await.ok()?;
        output.status.success().then_some(())
    }

    async fn pgbench(&self, schema: &str) -> Option<f64> {
        let run = async |args: &[&str]| {
            let mut command = self.command("pgbench");
            command.env("PGOPTIONS", format!("-c search_path={schema}"));
            let output = command.args(args).arg(&self.url).output().await.ok()?;
            String::from_utf8(output.stdout).ok().filter(|_| output.status.success())
        };
        run(&["-i", "-q"]).await?;
        // "tps = 2115.222723 (without initial connection time)"
        let text = run(&["-n", "-N", "-c", "16", "-T", SECONDS]).await?;
        let rate = text.lines().find_map(|line| line.strip_prefix("tps = "))?;
        rate.split(' ').next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_url_becomes_one_that_the_programs_of_postgres_read() {
        let server = Libpq::of("postgres://me:a%40b+c@db:5433/flows?schema=x&sslmode=require").unwrap();
        assert_eq!(server.url, "postgres://me@db:5433/flows?sslmode=require");
        assert_eq!(server.password.as_deref(), Some("a@b+c"));
        let server = Libpq::of("postgresql://me@db/flows").unwrap();
        assert_eq!((server.url.as_str(), server.password), ("postgres://me@db/flows?", None));
        assert!(Libpq::of("redis://db:6379").is_none());
    }
}
