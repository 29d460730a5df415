//! `flowline doctor`: is the store sound, and can an engine work here?

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use flowline::core::Time;
use flowline::runner::http::Secrets;
use flowline::store::{Clock, EventQuery, RunQuery, Store, StoreError};
use serde::Serialize;

use super::{CommandContext, NAME_HOST};
use crate::failure::{Exit, Outcome};
use crate::open::{StoreUrl, look};
use crate::output::{self, GREEN, RED, RESET, YELLOW};

/// Less than this and a busy store is soon full.
const LITTLE_DISK: u64 = 1 << 30;
/// Less than this and the next checkpoint may fail.
const NO_DISK: u64 = 64 << 20;
/// A clock behind the last event by less than this was only adjusted.
const CLOCK_SLACK_MS: i64 = 2_000;
/// 2024-01-01: before this a clock was never set.
const SANE: Time = Time::from_millis(1_704_067_200_000);

/// Check the store for problems
///
/// Checks the file, the disk, the clock and which process holds the store, and reads the whole store to find damage.
/// Changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  flowline doctor --store sqlite:/var/lib/flowline/flowline.db")]
pub struct Args {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Bad,
}

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, check: &'static str, message: impl Into<String>) {
        self.0.push(Finding { check, verdict: Verdict::Ok, message: message.into(), remedy: None });
    }

    fn warn(&mut self, check: &'static str, message: impl Into<String>, remedy: &'static str) {
        self.0.push(Finding { check, verdict: Verdict::Warn, message: message.into(), remedy: Some(remedy) });
    }

    fn bad(&mut self, check: &'static str, message: impl Into<String>, remedy: &'static str) {
        self.0.push(Finding { check, verdict: Verdict::Bad, message: message.into(), remedy: Some(remedy) });
    }
}

pub async fn run(context: &CommandContext) -> Outcome {
    let mut findings = Findings::default();
    let place = StoreUrl::read(&context.settings.store.value)?;
    let there = match place.file() {
        Some(path) => surroundings(path, &mut findings),
        None => true,
    };
    system_clock(&mut findings);
    for variable in Secrets::from_env().hostless() {
        findings.warn("secrets", format!("{variable} names no host, so it signs nothing"), NAME_HOST);
    }
    if there {
        match look(&context.settings.store.value).await {
            Ok(store) => examine(context, &place, &*store, &mut findings).await,
            Err(failure) => {
                findings.bad("open", failure.message, "fix the store, or name another one with --store")
            }
        }
    }
    report(context, &findings.0)
}

fn report(context: &CommandContext, findings: &[Finding]) -> Outcome {
    let bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    if context.json {
        output::json(&serde_json::json!({ "ok": !bad, "checks": findings }))?;
    } else {
        for Finding { check, verdict, message, remedy } in findings {
            let word = match verdict {
                Verdict::Ok => format!("{GREEN}ok  {RESET}"),
                Verdict::Warn => format!("{YELLOW}warn{RESET}"),
                Verdict::Bad => format!("{RED}bad {RESET}"),
            };
            output::line(&format!("{word}  {check:<10}  {}", output::clean(message)))?;
            if let Some(remedy) = remedy {
                output::line(&format!("                  help: {remedy}"))?;
            }
        }
    }
    Ok(if bad { Exit::Found } else { Exit::Fine })
}

/// The file, its folder, its disk, its lock. False where there is no file to look into.
fn surroundings(path: &Path, findings: &mut Findings) -> bool {
    let shown = path.display();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let there = match File::open(path) {
        Ok(_) => {
            findings.ok("file", format!("{shown} exists and is readable"));
            match OpenOptions::new().write(true).open(path) {
                Ok(_) => findings.ok("writable", format!("{shown} is writable")),
                Err(error) => findings.bad(
                    "writable",
                    format!("{shown}: {error}"),
                    "give this user write permission, or run as its owner",
                ),
            }
            true
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            findings.warn("file", format!("{shown} doesn't exist yet"), "create it with `flowline run FILE`");
            false
        }
        Err(error) => {
            findings.bad(
                "file",
                format!("{shown}: {error}"),
                "give this user read permission, or name another file",
            );
            false
        }
    };
    if there {
        modes(path, folder, findings);
    }
    disk(folder, findings);
    holder(path, findings);
    there
}

/// Who besides the owner may read the store or replace it.
#[cfg(unix)]
fn modes(path: &Path, folder: &Path, findings: &mut Findings) {
    use std::os::unix::fs::PermissionsExt;
    const READ: u32 = 0o044;
    const WRITE: u32 = 0o022;
    let mode = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.permissions().mode() & 0o777);
    let mut open = Vec::new();
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let mode = mode(Path::new(&name));
        if mode & (READ | WRITE) != 0 {
            open.push(format!("{} has mode {mode:04o}", Path::new(&name).display()));
        }
    }
    let mode = mode(folder);
    // A store in the working directory shares that with other things, whose names are no secret.
    let asked = if folder == Path::new(".") { WRITE } else { READ | WRITE };
    if mode & asked != 0 {
        open.push(format!("folder {} has mode {mode:04o}", folder.display()));
    }
    match open.is_empty() {
        true => findings.ok("access", "only the owner can read the store"),
        false => findings.warn(
            "access",
            format!("other users have access: {}", open.join(", ")),
            "set the files to mode 0600 and the folder to 0700, or move the store to its own folder",
        ),
    }
}

#[cfg(not(unix))]
fn modes(_: &Path, _: &Path, _: &mut Findings) {}

/// The nearest folder above that is there: where the store's own will be made.
fn existing(folder: &Path) -> PathBuf {
    let found = folder.ancestors().find(|folder| folder.is_dir());
    found.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

#[cfg(unix)]
fn disk(folder: &Path, findings: &mut Findings) {
    let folder = existing(folder);
    let stat = match rustix::fs::statvfs(&folder) {
        Ok(stat) => stat,
        Err(error) => {
            return findings.warn(
                "disk",
                format!("{}: {error}", folder.display()),
                "check the disk yourself",
            );
        }
    };
    if stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        findings.bad(
            "disk",
            format!("{} is on a read-only file system", folder.display()),
            "remount it read-write, or name another store with --store",
        );
    }
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let text = format!("{} MiB free", free >> 20);
    match free {
        ..NO_DISK => findings.bad("disk", text, "free some space: writes fail when the disk is full"),
        NO_DISK..LITTLE_DISK => {
            findings.warn("disk", text, "free some space, or keep runs for a shorter time")
        }
        _ => findings.ok("disk", text),
    }
}

#[cfg(not(unix))]
fn disk(folder: &Path, findings: &mut Findings) {
    let folder = existing(folder);
    findings.warn(
        "disk",
        format!("{}: can't measure free space on this system", folder.display()),
        "check it yourself",
    );
}

/// Who holds the engine lock. The lock is tried only where its signature names a living process: trying it takes it
/// for a moment, and an engine that starts just then would be refused.
fn holder(path: &Path, findings: &mut Findings) {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let signature = std::fs::read_to_string(&lock).unwrap_or_default();
    let pid = signature.split_whitespace().next().and_then(|pid| pid.parse::<u32>().ok());
    let lives = pid
        .is_some_and(|pid| !Path::new("/proc/self").exists() || Path::new(&format!("/proc/{pid}")).exists());
    let held = lives
        && File::open(&lock)
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)));
    match pid {
        Some(pid) if held => {
            findings.ok(
                "engine",
                format!("process {pid} is working on this store; other processes can only read"),
            );
        }
        _ => findings.ok("engine", "no engine is working on this store"),
    }
}

fn system_clock(findings: &mut Findings) {
    let now = Clock::system().now();
    if now < SANE {
        findings.bad(
            "clock",
            format!("the system clock shows {now}"),
            "set the clock; timestamps and delays depend on it",
        );
    } else {
        findings.ok("clock", format!("the system clock shows {now}"));
    }
}

async fn examine(context: &CommandContext, place: &StoreUrl, store: &dyn Store, findings: &mut Findings) {
    let mut made = true;
    match store.check().await {
        Ok(health) => {
            // A server can be looked at before the first engine has made anything there.
            made = health.format > 0;
            let size = health.bytes.map_or(String::new(), |bytes| format!(", {} KiB", bytes >> 10));
            let server = format!("{} {}", health.kind, health.version);
            match made {
                true => findings.ok("store", format!("{server}, format {}{size}", health.format)),
                false => findings.ok("server", server),
            }
            findings.ok("durability", health.durability);
            if let Some(why) = health.unwritable {
                findings.bad(
                    "writable",
                    why,
                    "engines need write access to the store; commands that only read still work",
                );
            }
            if made && health.problems.is_empty() {
                findings.ok("content", "no damage found");
            }
            for problem in health.problems {
                match place {
                    StoreUrl::File(_) | StoreUrl::Memory => {
                        findings.bad("content", problem, "first stop the engine and copy the file")
                    }
                    // How a server is set is for its operator to weigh; the words say what to do.
                    StoreUrl::Postgres(_) => {
                        findings.warn("server", problem, "see docs/postgres.md for what the server needs")
                    }
                    StoreUrl::Redis(_) => {
                        findings.warn("server", problem, "see docs/redis.md for what the server needs")
                    }
                }
            }
        }
        Err(error) => findings.bad("content", error.to_string(), remedy(&error)),
    }
    if !made {
        return findings.warn("store", "there is no store here yet", "create it with `flowline run FILE`");
    }
    match last_event(context, store).await {
        Ok(Some((last, now))) if last.millis() > now.millis() + CLOCK_SLACK_MS => findings.bad(
            "time",
            format!("the last event has the timestamp {last}, ahead of the clock ({now})"),
            "the clock went backwards; correct it, or delayed work will start late",
        ),
        Ok(Some((last, _))) => {
            findings.ok("time", format!("the last event of the newest run has the timestamp {last}"))
        }
        Ok(None) => findings.ok("time", "there are no events yet"),
        Err(error) => findings.bad("time", error.to_string(), remedy(&error)),
    }
}

/// What to do about a store that was opened and then did not answer as it should.
fn remedy(error: &StoreError) -> &'static str {
    match error {
        StoreError::Damaged(_) => "restore a backup",
        StoreError::CannotWrite(_) => "grant the missing permissions to the user in the store URL",
        StoreError::Unavailable(_) => "check that the server is running and reachable, then try again",
        _ => "fix the store, or name another one with --store",
    }
}

/// The date of the newest run's last event, and the store's present time.
async fn last_event(context: &CommandContext, store: &dyn Store) -> Result<Option<(Time, Time)>, StoreError> {
    let now = store.now().await?;
    let query = RunQuery { limit: 1, ..RunQuery::of(context.settings.tenant.value.clone()) };
    let Some(row) = store.runs(query).await?.items.pop() else { return Ok(None) };
    let query = EventQuery { after: row.events.saturating_sub(1), limit: 1, ..EventQuery::default() };
    let last = store.events(&row.key(), query).await?.events.pop();
    Ok(Some((last.map_or(row.created_at, |event| event.ts), now)))
}
