//! `flowline locks`: who holds which named lock; takes, extends and releases one, or runs a command under it.

use std::time::Duration;

use clap::Subcommand;
use flowline::core::time::parse_duration;
use flowline::lock::new_token;
use flowline_api::locks::{HeldLock, LockList};
use process_wrap::tokio::{CommandWrap, ProcessGroup};
use serde_json::json;

use super::CommandContext;
use crate::failure::{CliError, Exit, Outcome};
use crate::operator::{OperatorLock, lost};
use crate::output;
use crate::signals::Signals;

/// Taking a lock in a file writes to the file, and only one process at a time may do that.
const FILE_IN_USE: &str = "a SQLite file has one writer at a time, and `locks run` keeps the file open until its command ends, \
                           whatever the lock is called. To hold several locks at once, start `flowline serve` on the file and \
                           use --server URL, or use a Postgres or Redis store";

/// List named locks, acquire or release one, or run a command under one
///
/// A lock has one holder at a time across all instances, workers and commands of a tenant. It expires when its holder stops
/// extending it. Pass the fence to whatever you write to, so that it can reject a holder whose lock has expired.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline locks\n  flowline locks run nightly-report -- ./report.sh")]
pub struct Args {
    #[command(subcommand)]
    command: Option<LockCommand>,
}

#[derive(Debug, Subcommand)]
enum LockCommand {
    /// Acquire a lock and print the token that extends and releases it
    #[command(after_help = "Example:\n  flowline locks acquire nightly-report --ttl 10m --wait 1m")]
    Acquire {
        name: String,
        #[command(flatten)]
        how: How,
    },
    /// Extend a lock, so that it expires TTL from now
    #[command(after_help = "Example:\n  flowline locks extend nightly-report --lock-token TOKEN --ttl 10m")]
    Extend {
        name: String,
        /// Token that `acquire` printed [env: FLOWLINE_LOCK_TOKEN]
        #[arg(long, value_name = "TOKEN")]
        lock_token: Option<String>,
        /// How long it lasts from now, 1s to 24h
        #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = span)]
        ttl: Duration,
    },
    /// Release a lock
    #[command(after_help = "Example:\n  flowline locks release nightly-report --lock-token TOKEN")]
    Release {
        name: String,
        /// Token that `acquire` printed [env: FLOWLINE_LOCK_TOKEN]
        #[arg(long, value_name = "TOKEN")]
        lock_token: Option<String>,
    },
    /// Run a command while holding a lock
    ///
    /// Extends the lock while the command runs, and releases it afterwards. Kills the command if the lock is lost. The command
    /// finds FLOWLINE_LOCK_NAME and FLOWLINE_LOCK_FENCE in its environment. Exits with 0 if the command did, and with 1 if it
    /// failed or someone else holds the lock.
    #[command(after_help = "Example:\n  flowline locks run nightly-report --wait 1m -- ./report.sh --all")]
    Run {
        name: String,
        #[command(flatten)]
        how: How,
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
}

#[derive(Debug, clap::Args)]
struct How {
    /// How long the lock lasts unless it's extended, 1s to 24h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = span)]
    ttl: Duration,
    /// How long to wait if someone else holds the lock
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = span)]
    wait: Duration,
    /// Name to show as the holder [default: user and process id]
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
}

fn span(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a duration such as 500ms, 30s or 1h30m".to_owned())
}

pub async fn run(context: &CommandContext, args: Args) -> Outcome {
    match args.command {
        None => list(context).await,
        Some(LockCommand::Acquire { name, how }) => acquire(context, &name, how).await,
        Some(LockCommand::Extend { name, lock_token, ttl }) => {
            extend(context, &name, &given_token(lock_token)?, ttl).await
        }
        Some(LockCommand::Release { name, lock_token }) => {
            release(context, &name, &given_token(lock_token)?).await
        }
        Some(LockCommand::Run { name, how, command }) => run_under(context, &name, how, command).await,
    }
}

async fn list(context: &CommandContext) -> Outcome {
    let items = context.operator()?.locks().await?;
    if context.json {
        output::json(&LockList { items })?;
    } else if items.is_empty() {
        output::note("no locks are held");
    } else {
        let cells = |lock: &HeldLock| {
            let left = output::millis(lock.remaining_ms);
            vec![
                lock.name.clone(),
                lock.owner.clone(),
                left,
                output::date(lock.since),
                lock.fence.to_string(),
            ]
        };
        output::table(&["lock", "owner", "left", "since", "fence"], items.iter().map(cells).collect())?;
    }
    Ok(Exit::Fine)
}

async fn acquire(context: &CommandContext, name: &str, how: How) -> Outcome {
    let token = new_token();
    let owner = how.owner();
    let lock = lock(context, name, how.ttl).await?.owner(&owner);
    let until = tokio::time::Instant::now() + how.wait;
    let mut pause = Duration::from_millis(50);
    let granted = loop {
        match lock.grant(token, &owner).await {
            Err(failure) if failure.code == "lock-held" && tokio::time::Instant::now() + pause <= until => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            answer => break answer?,
        }
    };
    if context.json {
        output::json(&granted)?;
    } else {
        // Alone on stdout, for $(…).
        output::line(&granted.lock_token)?;
        let HeldLock { fence, until, .. } = granted.lock;
        output::note(&format!("lock {name} is yours until {} (fence {fence})", output::date(until)));
    }
    Ok(Exit::Fine)
}

async fn extend(context: &CommandContext, name: &str, token: &str, ttl: Duration) -> Outcome {
    let (until, remaining_ms) = lock(context, name, ttl).await?.extend(token, ttl).await?;
    context.answer(&json!({ "name": name, "until": until, "remainingMs": remaining_ms }), || {
        output::line(&format!("lock {name} is yours until {}", output::date(until)))
    })
}

async fn release(context: &CommandContext, name: &str, token: &str) -> Outcome {
    let released = lock(context, name, flowline::lock::TTL).await?.release(token).await?;
    if context.json {
        output::json(&json!({ "name": name, "released": released }))?;
    } else if released {
        output::line(&format!("lock {name} is released"))?;
    }
    if released {
        return Ok(Exit::Fine);
    }
    if !context.json {
        output::fault(&lost(name).message, None);
    }
    Ok(Exit::Found)
}

async fn run_under(context: &CommandContext, name: &str, how: How, command: Vec<String>) -> Outcome {
    let cannot =
        |error: std::io::Error| CliError::environment(format!("can't run {:?}: {error}", command[0]));
    let mut signals = Signals::listen().map_err(cannot)?;
    let lock = lock(context, name, how.ttl).await?.owner(&how.owner());
    let guard = tokio::select! {
        guard = lock.guard(how.wait) => guard?,
        () = signals.next() => return Ok(Exit::Interrupted),
    };
    let mut child = CommandWrap::with_new(&command[0], |child| {
        child.args(&command[1..]);
        child.env("FLOWLINE_LOCK_NAME", name).env("FLOWLINE_LOCK_FENCE", guard.fence().to_string());
        if context.json {
            child.stdout(std::io::stderr());
        }
    });
    // A group of its own, so that nothing it started outlives the lock.
    let mut child = match child.wrap(ProcessGroup::leader()).spawn() {
        Ok(child) => child,
        Err(error) => {
            guard.release().await?;
            return Err(cannot(error));
        }
    };
    let ended = tokio::select! {
        status = child.wait() => Ok(status.map_err(cannot)?),
        () = guard.lost() => Err(lost(name)),
        () = signals.next() => Err(CliError::new(Exit::Interrupted, "interrupted", "interrupted")),
    };
    // Also of a command that ended: what it left behind holds no lock.
    let _ = child.start_kill();
    let _ = child.wait().await;
    let kept = guard.release().await;
    let status = match ended {
        Err(failure) if failure.exit == Exit::Interrupted => return Ok(Exit::Interrupted),
        ended => ended?,
    };
    kept?;
    if context.json {
        output::json(&json!({ "name": name, "exitCode": status.code() }))?;
    }
    if status.success() {
        return Ok(Exit::Fine);
    }
    if !context.json {
        output::fault(&format!("{} ended with {status}", command[0]), None);
    }
    Ok(Exit::Found)
}

async fn lock(context: &CommandContext, name: &str, ttl: Duration) -> Result<OperatorLock, CliError> {
    flowline::core::ids::check_name("lock", name).map_err(|error| CliError::usage(error.to_string()))?;
    context.operator()?.lock(name, ttl).await.map_err(|failure| match failure.code {
        "store-in-use" => failure.help(FILE_IN_USE),
        _ => failure,
    })
}

impl How {
    fn owner(&self) -> String {
        let user = || std::env::var("USER").ok().filter(|user| !user.is_empty());
        let named = self.owner.clone();
        named.unwrap_or_else(|| {
            format!("{}:{}", user().unwrap_or_else(|| "cli".to_owned()), std::process::id())
        })
    }
}

fn given_token(flag: Option<String>) -> Result<String, CliError> {
    let from_env = || std::env::var("FLOWLINE_LOCK_TOKEN").ok().filter(|token| !token.is_empty());
    flag.or_else(from_env).ok_or_else(|| {
        CliError::usage("the lock token is missing")
            .help("pass the token that `flowline locks acquire` printed with --lock-token")
    })
}
