//! Live progress on stderr: a line for each thing that happens to a step, and on a terminal a spinner for each step
//! that runs. Fed by events of the log, so it shows what is durable.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use flowline::core::event::EventType;
use flowline::core::run::RELEASED;
use flowline::core::{Event, RunId, Time};
use flowline_server::view::EventData;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::happened;
use crate::output::{self, CYAN, DIM, GREEN, RED, RESET, YELLOW};

/// Spinners at once; more only scroll.
const SPINNERS: usize = 20;
/// Characters of an error or a log line.
const TEXT: usize = 300;

/// A shorter attempt is written whole, its start and its end with one date.
const UNDATED: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// One run: its id goes without saying.
    Step,
    /// Several runs.
    RunAndStep,
}

#[derive(Debug)]
pub struct Progress {
    names: Names,
    /// Of the step column.
    width: usize,
    live: Option<MultiProgress>,
    running: HashMap<(RunId, Arc<str>), Running>,
    silent: bool,
}

#[derive(Debug, Default)]
struct Running {
    started: Option<Time>,
    emits: Vec<String>,
    spinner: Option<ProgressBar>,
}

impl Progress {
    /// `width` is that of the longest step name.
    pub fn new(names: Names, width: usize) -> Progress {
        let live = std::io::stderr().is_terminal().then(MultiProgress::new);
        Progress { names, width: width.min(40), live, running: HashMap::new(), silent: false }
    }

    pub fn silent() -> Progress {
        Progress { names: Names::Step, width: 0, live: None, running: HashMap::new(), silent: true }
    }

    /// Shows an event.
    pub fn event(&mut self, event: &Event) {
        if self.silent {
            return;
        }
        match &event.step_name {
            Some(step) => self.step(event, step.clone()),
            None => self.run(event),
        }
    }

    /// Shows a line of its own.
    pub fn note(&self, line: &str) {
        match &self.live {
            _ if self.silent => {}
            Some(live) if output::stderr_has_color() => drop(live.println(output::tame(line))),
            Some(live) => live.suspend(|| output::note(line)),
            None => output::note(line),
        }
    }

    /// Takes the spinners away.
    pub fn finish(&mut self) {
        for running in self.running.values_mut() {
            if let Some(spinner) = running.spinner.take() {
                spinner.finish_and_clear();
            }
        }
    }

    fn step(&mut self, event: &Event, step: Arc<str>) {
        let data = EventData::of(event);
        let key = (event.run_id.clone(), step.clone());
        let text = match event.kind {
            EventType::StepStarted => {
                self.start(key, event, &step);
                let again = event.attempt.filter(|attempt| *attempt > 1);
                if self.live.is_some() {
                    return;
                }
                format!("{CYAN}started{RESET}{}", again.map_or(String::new(), |n| format!(" (attempt {n})")))
            }
            EventType::Emit => {
                self.running.entry(key).or_default().emits.push(data.name.unwrap_or_default());
                return;
            }
            EventType::StepCompleted => self.completed(&key, event, &data),
            EventType::StepRetry => {
                self.end(&key, event.ts);
                let after = match data.delay_ms.unwrap_or(0) {
                    0 => "retrying now".to_owned(),
                    ms => format!("retrying in {}", output::millis(ms)),
                };
                let attempt = event.attempt.unwrap_or(0);
                match data.code.as_deref() {
                    Some(RELEASED) => format!("{YELLOW}attempt {attempt} was released{RESET}, {after}"),
                    _ => format!("{YELLOW}attempt {attempt} failed{RESET}, {after}: {}", said(data.error)),
                }
            }
            EventType::StepFailed => {
                let took = self
                    .end(&key, event.ts)
                    .0
                    .map_or(String::new(), |d| format!(" after {}", output::duration(d)));
                format!("{RED}failed{RESET}{took}: {}", said(data.error))
            }
            EventType::StepSkipped => format!("{DIM}skipped: {}{RESET}", said(data.reason)),
            EventType::Log => {
                let level = data.level.unwrap_or_default();
                let color = match level.as_str() {
                    "error" => RED,
                    "warn" => YELLOW,
                    _ => DIM,
                };
                format!("{color}|{RESET} {}", said(data.message))
            }
            _ => return,
        };
        self.say(event, &step, &text);
    }

    fn run(&mut self, event: &Event) {
        let data = EventData::of(event);
        let text = match event.kind {
            EventType::Emit => format!("{CYAN}received{RESET} {}", said(data.name)),
            EventType::EventReceived => format!("{CYAN}received{RESET} {}", happened(event)),
            EventType::EventRejected => format!("{YELLOW}rejected{RESET} {}", happened(event)),
            EventType::StateChanged => format!("{GREEN}state{RESET} {}", happened(event)),
            EventType::TimerSet => format!("{DIM}timer set {}{RESET}", happened(event)),
            EventType::TimerFired => format!("{CYAN}timer fired{RESET} {}", happened(event)),
            EventType::TimerCancelled => format!("{DIM}timer cancelled {}{RESET}", happened(event)),
            EventType::FlowPaused => format!("{YELLOW}paused{RESET}"),
            EventType::FlowResumed => format!("{CYAN}resumed{RESET}"),
            _ if self.names == Names::Step => return,
            EventType::FlowStart => format!("{CYAN}started{RESET}"),
            EventType::FlowCompleted => {
                format!("{GREEN}completed{RESET} in {}", output::millis(data.duration.unwrap_or(0)))
            }
            EventType::FlowFailed => format!("{RED}failed{RESET}: {}", said(data.error)),
            EventType::FlowCancelled => format!("{RED}cancelled{RESET}"),
            _ => return,
        };
        self.say(event, "run", &text);
    }

    fn completed(&mut self, key: &(RunId, Arc<str>), event: &Event, data: &EventData) -> String {
        let (took, emits) = self.end(key, event.ts);
        let took = match took {
            _ if data.inherited => " in an earlier run".to_owned(),
            // The log dates a short attempt once, when it is written.
            Some(Duration::ZERO) => format!(" in under {}", output::duration(UNDATED)),
            Some(took) => format!(" in {}", output::duration(took)),
            None => String::new(),
        };
        let emits = if emits.is_empty() { String::new() } else { format!(" → {}", emits.join(", ")) };
        format!("{GREEN}completed{RESET}{took}{emits}")
    }

    fn start(&mut self, key: (RunId, Arc<str>), event: &Event, step: &str) {
        let live = self.live.as_ref().filter(|_| self.running.len() < SPINNERS);
        let spinner = live.map(|live| {
            let spinner = live.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                spinner.set_style(style);
            }
            let attempt =
                event.attempt.filter(|n| *n > 1).map_or(String::new(), |n| format!(", attempt {n}"));
            let message = format!("{:width$}  running{attempt}", step, width = self.width);
            spinner.set_message(output::clean(&message).into_owned());
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        });
        self.running.insert(key, Running { started: Some(event.began()), emits: Vec::new(), spinner });
    }

    /// Forgets a running attempt: how long it took and what it emitted.
    fn end(&mut self, key: &(RunId, Arc<str>), at: Time) -> (Option<Duration>, Vec<String>) {
        let Some(mut running) = self.running.remove(key) else { return (None, Vec::new()) };
        if let (Some(spinner), Some(live)) = (running.spinner.take(), &self.live) {
            spinner.finish_and_clear();
            live.remove(&spinner);
        }
        (running.started.map(|started| at.since(started)), running.emits)
    }

    fn say(&self, event: &Event, step: &str, text: &str) {
        let step = format!("{:width$}", step, width = self.width);
        let line = match self.names {
            Names::Step => format!("{step}  {text}"),
            Names::RunAndStep => format!("{} {}  {step}  {text}", event.run_id, event.flow_name),
        };
        self.note(&line);
    }
}

fn happened(event: &Event) -> String {
    happened::words(event).unwrap_or_default()
}

fn said(text: Option<String>) -> String {
    output::clip(&text.unwrap_or_default(), TEXT)
}
