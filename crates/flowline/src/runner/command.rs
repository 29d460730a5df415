//! Command steps: one program per attempt, which speaks JSON lines.
//!
//! The program gets one JSON object on stdin and writes messages to stdout, one JSON object per line (`emit`,
//! `emit_now`, `log`, `state`, `result`, `fail`, `retry`). Any other line, and all of stderr, is logged. Exit code 0 is
//! success. There's no shell, the environment is clean, and the whole process group is killed with the attempt; if that's
//! cut short, so are processes that left the group. If stdin stays open, answers to `state` arrive there, one per line.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flowline_api::work::Emit;
use flowline_core::definition::{Runner as Run, Stdin};
use flowline_core::json::{self, Json, JsonError};
use flowline_core::limits::{self, Limit};
use flowline_core::time::parse_duration;
use flowline_store::StateScope;
use process_wrap::tokio::{ChildWrapper, CommandWrap, ProcessGroup};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use super::message::{self, Odd, StateMessage, StdoutLine};
use super::{Runner, StepFuture, stray};
use crate::step::{Level, Step, StepError};

/// Lines of a program that are read without letting others have their turn.
const AT_ONCE: usize = 256;
/// Pause after so many lines of a program whose log is cut.
const UNREAD: Duration = Duration::from_millis(20);
/// What programs give up to the engine, as `nice` counts it.
const NICE: i32 = 10;
/// Passed on from the engine's own environment; everything else a step needs is named with `pass_env`.
const PASSED: [&str; 8] = ["PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER", "SHELL"];
/// Lines of stderr that are repeated in the error of a failed attempt.
const LAST_LINES: usize = 5;
/// Replies that a program may leave unread before it is listened to no further.
const REPLIES: usize = 64;
/// How a line begins that carries a payload.
const MEANT: [&str; 4] = ["{\"emit\"", "{\"emit_now\"", "{\"result\"", "{\"state\""];
/// How long others may hold the output of a program that has ended: what it left in the pipe is read, and what it started
/// may finish its sentence.
const LINGER: Duration = Duration::from_secs(3);
/// How long the output is read once those others are killed, for what's still in the pipe.
const DRAIN: Duration = Duration::from_secs(5);
/// What a line may have beyond its payload.
const ENVELOPE: usize = 4 << 10;

/// What a program is told of the attempt that it runs for.
#[derive(Debug, Clone)]
pub struct About {
    pub run_id: String,
    pub flow: String,
    pub tenant: String,
    pub step: String,
    pub step_id: String,
    pub attempt: u32,
    pub idempotency_key: String,
    pub traceparent: String,
}

/// A program for one attempt.
#[derive(Debug, Clone, Copy)]
pub struct StepProgram<'a> {
    pub argv: &'a [String],
    /// Where it runs, and where a relative path to it starts.
    pub folder: Option<&'a Path>,
    /// Variables that are passed on besides the usual ones.
    pub pass_env: &'a [String],
    /// Whether stdin stays open after the input, for replies.
    pub stdin: Stdin,
    /// The largest payload that it may write.
    pub payload: Limit,
}

/// What receives a program's messages.
pub trait Listener: Sync {
    /// Waits if lines arrive faster than they can be written.
    fn log(
        &self,
        level: Level,
        message: &str,
        fields: serde_json::Map<String, serde_json::Value>,
    ) -> impl Future<Output = Result<(), StepError>> + Send;
    /// Called every `AT_ONCE` lines: lets others have their turn.
    fn pause(&self) -> impl Future<Output = ()> + Send {
        tokio::task::yield_now()
    }
    fn emit(&self, name: &str, payload: Json) -> Result<(), StepError>;
    fn emit_now(&self, name: &str, payload: Json) -> impl Future<Output = Result<(), StepError>> + Send;
    /// Writes key-value state, or with no value deletes it.
    fn state(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Json>,
        ttl: Option<Duration>,
    ) -> impl Future<Output = Result<(), StepError>> + Send;
    /// Reads key-value state.
    fn get(
        &self,
        scope: StateScope,
        key: &str,
    ) -> impl Future<Output = Result<Option<Json>, StepError>> + Send;
}

impl StepProgram<'_> {
    /// Runs it to its end: its result, or why it failed. Dropping the future kills it with all that it started.
    pub async fn run(
        &self,
        about: &About,
        state: Option<&Json>,
        input: &Json,
        listener: &impl Listener,
    ) -> Result<Json, StepError> {
        let mut child = spawn(self, about)?;
        talk(&mut child, listener, envelope(about, state, input), self).await
    }
}

/// Runs `command` steps.
#[derive(Debug, Default)]
pub struct Command {
    /// Variables that are passed on besides the usual ones.
    pub pass_env: Vec<String>,
    /// The folders that definitions came from, by hash.
    origins: Arc<Mutex<HashMap<Arc<str>, Option<PathBuf>>>>,
}

impl Runner for Command {
    fn run(&self, step: Step, input: Json) -> StepFuture {
        let (origins, pass_env) = (self.origins.clone(), self.pass_env.clone());
        Box::pin(async move {
            let folder = origin(&origins, &step).await?;
            let definition = step.live.attempt.plan.step_definition(step.live.attempt.step);
            let Run::Command(argv) = &definition.runner else {
                return Err(StepError::fatal("this step has no command"));
            };
            let state = step.live.states().await?;
            let state =
                state.map(|all| json::object(all.iter().map(|(key, value)| (key.as_str(), Some(value)))));
            let (folder, stdin) = (folder.as_deref(), definition.stdin);
            let payload = step.live.limits.payload();
            let program = StepProgram { argv, folder, pass_env: &pass_env, stdin, payload };
            program.run(&about(&step), state.as_ref(), &input, &step).await
        })
    }
}

fn about(step: &Step) -> About {
    About {
        run_id: step.run_id().to_string(),
        flow: step.flow().to_owned(),
        tenant: step.tenant().to_string(),
        step: step.name().to_owned(),
        step_id: step.step_id(),
        attempt: step.attempt(),
        idempotency_key: step.idempotency_key(),
        traceparent: step.traceparent(),
    }
}

impl Listener for Step {
    async fn log(
        &self,
        level: Level,
        message: &str,
        fields: serde_json::Map<String, serde_json::Value>,
    ) -> Result<(), StepError> {
        self.log_with(level, message, fields);
        self.live.make_room().await
    }

    async fn pause(&self) {
        match self.live.log_is_cut() {
            // Nobody will read it, so there's no hurry: the program waits when its pipe is full.
            true => tokio::time::sleep(UNREAD).await,
            false => tokio::task::yield_now().await,
        }
    }

    fn emit(&self, name: &str, payload: Json) -> Result<(), StepError> {
        self.emit_json(name, payload)
    }

    async fn emit_now(&self, name: &str, payload: Json) -> Result<(), StepError> {
        self.emit_json_now(name, payload).await
    }

    async fn state(
        &self,
        scope: StateScope,
        key: &str,
        value: Option<Json>,
        ttl: Option<Duration>,
    ) -> Result<(), StepError> {
        match (value, ttl) {
            (Some(value), Some(ttl)) => self.set_for(scope, key, value, ttl).await,
            (Some(value), None) => self.set(scope, key, value).await,
            (None, _) => self.delete(scope, key).await,
        }
    }

    async fn get(&self, scope: StateScope, key: &str) -> Result<Option<Json>, StepError> {
        self.live.get(scope, key).await
    }
}

/// The folder that the step's definition came from.
async fn origin(
    origins: &Mutex<HashMap<Arc<str>, Option<PathBuf>>>,
    step: &Step,
) -> Result<Option<PathBuf>, StepError> {
    let hash = &step.live.attempt.plan.hash;
    if let Some(known) = origins.lock().unwrap_or_else(PoisonError::into_inner).get(hash) {
        return Ok(known.clone());
    }
    let stored = step.live.definition().await?;
    let folder = stored.and_then(|stored| stored.origin).map(PathBuf::from);
    origins.lock().unwrap_or_else(PoisonError::into_inner).insert(hash.clone(), folder.clone());
    Ok(folder)
}

/// A child that dies, with all that it started, when it is dropped.
struct Child {
    process: Box<dyn ChildWrapper>,
    /// What [`stray::MARK`] says in its environment.
    mark: String,
    /// Whether it ended by itself and nobody holds its output: nothing needs to be looked for.
    ended: bool,
}

impl Child {
    /// Kills it and all that it started. What left its process group is looked for in the background.
    fn kill(&mut self) -> impl FnOnce() + Send + use<> {
        // While it lives, its descendants can be told from those of others.
        let tree = self.process.id().map(stray::ProcessTree::of).unwrap_or_default();
        // It may have ended by itself.
        let _ = self.process.start_kill();
        tree.kill();
        let mark = self.mark.clone();
        move || stray::hunt(&mark)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.ended {
            let _ = self.process.start_kill();
            return;
        }
        let hunt = self.kill();
        // Without a thread to do it in, the group is dead all the same.
        let _ = std::thread::Builder::new().name("flowline-kill".to_owned()).spawn(hunt);
    }
}

fn spawn(program: &StepProgram<'_>, about: &About) -> Result<Child, StepError> {
    let StepProgram { argv, folder, pass_env, .. } = *program;
    let Some((program, arguments)) = argv.split_first() else {
        return Err(StepError::fatal("the command is empty").code("spawn"));
    };
    let path = Path::new(program);
    let program = match folder {
        Some(folder) if path.is_relative() && path.components().count() > 1 => folder.join(path),
        _ => path.to_owned(),
    };
    let mut command = tokio::process::Command::new(&program);
    command.args(arguments).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let passed = PASSED.iter().copied().chain(pass_env.iter().map(String::as_str));
    command.envs(passed.filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.env("FLOWLINE_RUN_ID", &about.run_id).env("FLOWLINE_STEP", &about.step);
    command.env("FLOWLINE_ATTEMPT", about.attempt.to_string());
    command.env("FLOWLINE_IDEMPOTENCY_KEY", &about.idempotency_key);
    let mark = uuid::Uuid::now_v7().simple().to_string();
    command.env(stray::MARK, &mark);
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let mut wrapped = CommandWrap::from(command);
    wrapped.wrap(ProcessGroup::leader());
    let spawned = wrapped.spawn().map(|process| {
        let child = Child { process, mark, ended: false };
        // The engine that everyone shares comes first. Where it can't be said, it's a program like any other.
        let id = child.process.id().and_then(|id| rustix::process::Pid::from_raw(id as i32));
        let _ = id.map(|id| rustix::process::setpriority_process(Some(id), NICE));
        child
    });
    spawned.map_err(|error| {
        let at = folder.map_or_else(String::new, |folder| format!(" in {}", folder.display()));
        let text = format!("can't start {:?}{at}: {error}", program.display().to_string());
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => StepError::fatal(text).code("spawn"),
            _ => StepError::new(text).code("spawn"),
        }
    })
}

async fn talk(
    child: &mut Child,
    listener: &impl Listener,
    envelope: Json,
    program: &StepProgram<'_>,
) -> Result<Json, StepError> {
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (child.process.stdin().take(), child.process.stdout().take(), child.process.stderr().take())
    else {
        return Err(StepError::new("the program has no pipes").code("spawn"));
    };
    let (replies, mut written) = mpsc::channel::<Json>(REPLIES);
    let mut said = Said { replies: (program.stdin == Stdin::Open).then_some(replies), ..Said::default() };
    let write = async move {
        let mut next = Some(envelope);
        while let Some(line) = next {
            // A program that does not read its input is free not to.
            let _ = stdin.write_all(line.get().as_bytes()).await;
            let _ = stdin.write_all(b"\n").await;
            next = written.recv().await;
        }
        Ok(())
    };
    let mut last = VecDeque::new();
    let conversation = async {
        tokio::try_join!(
            write,
            said.read(listener, stdout, program.payload),
            read_stderr(listener, stderr, program.payload, &mut last)
        )
    };
    // The first breach of the protocol ends the conversation: the program is dropped, and so killed.
    let (status, heard) = to_the_end(child, conversation).await?;
    if !heard {
        let text = "the program has ended, but a process that it started still has its output open; whatever that process writes is ignored";
        listener.log(Level::Warn, text, Default::default()).await?;
    }
    said.outcome(status, &last)
}

/// Waits until the program has ended and all that it said was heard. Somebody else who holds its output is given a moment,
/// then killed, then ignored: says whether it was heard to the end.
async fn to_the_end<T>(
    child: &mut Child,
    conversation: impl Future<Output = Result<T, StepError>>,
) -> Result<(ExitStatus, bool), StepError> {
    tokio::pin!(conversation);
    let status = tokio::select! {
        biased;
        heard = &mut conversation => {
            heard?;
            let status = child.process.wait().await?;
            child.ended = true;
            return Ok((status, true));
        }
        status = child.process.wait() => status?,
    };
    if let Ok(heard) = tokio::time::timeout(LINGER, &mut conversation).await {
        heard?;
        child.ended = true;
        return Ok((status, true));
    }
    // What can't be hunted down now is when the child is dropped.
    let _ = tokio::task::spawn_blocking(child.kill()).await;
    match tokio::time::timeout(DRAIN, conversation).await {
        Ok(heard) => heard.map(|_| (status, true)),
        Err(_) => Ok((status, false)),
    }
}

/// What the program reads on stdin. State that is left out is said to be.
fn envelope(about: &About, state: Option<&Json>, input: &Json) -> Json {
    let text = |text: &str| json::string(text);
    let omitted = state.is_none().then(|| Json::from(true));
    json::object([
        ("runId", Some(&text(&about.run_id))),
        ("flowName", Some(&text(&about.flow))),
        ("tenant", Some(&text(&about.tenant))),
        ("stepName", Some(&text(&about.step))),
        ("stepId", Some(&text(&about.step_id))),
        ("attempt", Some(&json::number(i64::from(about.attempt)))),
        ("idempotencyKey", Some(&text(&about.idempotency_key))),
        ("state", state),
        ("stateOmitted", omitted.as_ref()),
        // These two last, so that a shell script can cut the input out.
        ("traceparent", Some(&text(&about.traceparent))),
        ("input", Some(input)),
    ])
}

/// What a program said on stdout.
#[derive(Default)]
struct Said {
    result: Option<Json>,
    failure: Option<StepError>,
    /// The way back to the program, while its stdin is open and it may still speak.
    replies: Option<mpsc::Sender<Json>>,
}

impl Said {
    async fn read(
        &mut self,
        listener: &impl Listener,
        stdout: impl AsyncRead + Unpin,
        payload: Limit,
    ) -> Result<(), StepError> {
        let mut lines = BufReader::new(stdout);
        let mut read = 0;
        while let Some(line) = next_line(&mut lines, payload).await? {
            self.line(listener, &line).await?;
            read += 1;
            if read % AT_ONCE == 0 {
                listener.pause().await;
            }
        }
        self.replies = None;
        Ok(())
    }

    async fn line(&mut self, listener: &impl Listener, text: &str) -> Result<(), StepError> {
        // Taken for a log line, an emit or a result would be lost without a word.
        if MEANT.iter().any(|key| text.starts_with(key))
            && let Err(error @ (JsonError::Depth | JsonError::Unreadable(_))) = Json::parse(text)
        {
            return Err(StepError::fatal(error).code("invalid_payload"));
        }
        let mut line = match message::read(text) {
            StdoutLine::Message(message) => message,
            StdoutLine::Odd(Odd { why, failure, breach }) => {
                self.failure = failure.or(self.failure.take());
                let text = format!("not a message ({why}): {}", text.trim());
                listener.log(Level::Warn, &text, Default::default()).await?;
                return breach.map_or(Ok(()), Err);
            }
            StdoutLine::Text => {
                if !text.trim().is_empty() {
                    listener.log(Level::Info, text, Default::default()).await?;
                }
                return Ok(());
            }
        };
        self.failure = line.failure().or(self.failure.take());
        if let Some(Emit { name, payload }) = line.emit {
            listener.emit(&name, payload)?;
        }
        if let Some(Emit { name, payload }) = line.emit_now {
            listener.emit_now(&name, payload).await?;
        }
        if let Some(mut fields) = line.log {
            let level = fields.remove("level").and_then(|level| Level::parse(level.as_str()?));
            let message = match fields.remove("message") {
                Some(serde_json::Value::String(message)) => message,
                Some(other) => other.to_string(),
                None => String::new(),
            };
            listener.log(level.unwrap_or(Level::Info), &message, fields).await?;
        }
        if let Some(state) = line.state {
            self.state(listener, state).await?;
        }
        if let Some(result) = line.result {
            self.result = Some(result);
        }
        Ok(())
    }

    async fn state(&self, listener: &impl Listener, state: StateMessage) -> Result<(), StepError> {
        let scope = StateScope::from(state.scope.as_deref().unwrap_or("run"));
        let StateMessage { set, delete, get, value, ttl, .. } = state;
        match (set, delete, get, value) {
            (Some(key), None, None, value) => {
                let value = value.unwrap_or_else(Json::null);
                listener.state(scope, &key, Some(value), ttl.as_deref().and_then(parse_duration)).await
            }
            (None, Some(key), None, None) if ttl.is_none() => listener.state(scope, &key, None, None).await,
            (None, None, Some(key), None) if ttl.is_none() => self.reply(listener, scope, &key).await,
            _ => {
                let text = "a state line must have one of \"set\" (with \"value\", and \"ttl\" if it should expire), \
                            \"delete\" and \"get\"";
                Err(StepError::fatal(text).code("protocol"))
            }
        }
    }

    async fn reply(&self, listener: &impl Listener, scope: StateScope, key: &str) -> Result<(), StepError> {
        let Some(replies) = &self.replies else {
            let text = format!(
                "can't read state {key:?}, because stdin is closed after the input; give the step `stdin: open`, or the worker \
                 `--stdin open`"
            );
            return Err(StepError::fatal(text).code("protocol"));
        };
        let found = listener.get(scope.clone(), key).await?;
        let state = json::object([
            ("get", Some(&json::string(key))),
            ("scope", Some(&json::string(scope.as_str()))),
            ("value", found.as_ref()),
        ]);
        // One that closed its stdin does not want to know.
        let _ = replies.send(json::object([("state", Some(&state))])).await;
        Ok(())
    }

    fn outcome(self, status: ExitStatus, last: &VecDeque<String>) -> Result<Json, StepError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if status.success() {
            return Ok(self.result.unwrap_or_else(Json::null));
        }
        let (what, code) = ended(status);
        let last = last.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let text = if last.is_empty() { what } else { format!("{what}: {last}") };
        Err(StepError::new(text).code(&code))
    }
}

fn ended(status: ExitStatus) -> (String, String) {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return (format!("the program was killed by signal {signal}"), format!("signal_{signal}"));
    }
    let code = status.code().unwrap_or(-1);
    (format!("the program exited with code {code}"), format!("exit_{code}"))
}

/// Logs stderr to its end, and keeps its last lines.
async fn read_stderr(
    listener: &impl Listener,
    stderr: impl AsyncRead + Unpin,
    payload: Limit,
    last: &mut VecDeque<String>,
) -> Result<(), StepError> {
    let mut lines = BufReader::new(stderr);
    let mut read = 0;
    while let Some(line) = next_line(&mut lines, payload).await? {
        read += 1;
        if read % AT_ONCE == 0 {
            listener.pause().await;
        }
        if line.trim().is_empty() {
            continue;
        }
        listener.log(Level::Warn, &line, Default::default()).await?;
        if last.len() == LAST_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    Ok(())
}

/// The next line without its end; `None` at the end. Refuses one that is longer than a payload or a log line with what
/// stands around it.
async fn next_line(
    lines: &mut (impl AsyncBufRead + Unpin),
    payload: Limit,
) -> Result<Option<String>, StepError> {
    let most = payload.bytes.max(limits::LOG_BYTES) + ENVELOPE;
    let mut line = Vec::new();
    loop {
        let chunk = lines.fill_buf().await?;
        if chunk.is_empty() {
            return Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned()));
        }
        let end = chunk.iter().position(|&byte| byte == b'\n');
        line.extend_from_slice(&chunk[..end.unwrap_or(chunk.len())]);
        let used = end.map_or(chunk.len(), |end| end + 1);
        lines.consume(used);
        if line.len() > most {
            let text = format!(
                "the program wrote a line of over {most} bytes; the limit for a payload is {} (setting {})",
                payload.bytes, payload.setting
            );
            return Err(StepError::fatal(text).code("too_large"));
        }
        if end.is_some() {
            return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
        }
    }
}
