//! A server that answers as a test says and remembers what it was asked, and an engine that calls it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flowline::core::definition::{Format, read};
use flowline::core::event::EventType;
use flowline::core::{Event, Json};
use flowline::runner::http::{Allow, HttpConfig};
use flowline::store::{EventQuery, RunRow};
use flowline::{Engine, RunOutcome};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::kit::memory;

/// Longer than any attempt here may take.
pub const SOON: Duration = Duration::from_secs(20);

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `POST /path?query HTTP/1.1`
    pub line: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// These bytes, then nothing for ever.
    Hang(Vec<u8>),
    /// These bytes again and again, as long as somebody reads them.
    Endless(Vec<u8>, Vec<u8>),
}

impl Answer {
    pub fn new(head: &str, body: &str) -> Answer {
        Answer::Bytes(format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes())
    }

    pub fn json(body: &str) -> Answer {
        Answer::new("200 OK\r\ncontent-type: application/json", body)
    }
}

pub struct Server {
    pub port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Answers the first request with the first answer, and so on; the last answer is given to all that follow.
    pub async fn new(answers: Vec<Answer>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        tokio::spawn(async move {
            let mut answers = answers.into_iter().peekable();
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answers.next().unwrap();
                if answers.peek().is_none() {
                    answers = vec![answer.clone()].into_iter().peekable();
                }
                tokio::spawn(serve(stream, answer, seen.clone()));
            }
        });
        Server { port, asked }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, answer: Answer, seen: Arc<Mutex<Vec<Asked>>>) {
    let Some(asked) = read_request(&mut stream).await else { return };
    seen.lock().unwrap().push(asked);
    match answer {
        Answer::Bytes(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
        }
        Answer::Hang(bytes) => {
            let _ = stream.write_all(&bytes).await;
            std::future::pending().await
        }
        Answer::Endless(head, more) => {
            let _ = stream.write_all(&head).await;
            while stream.write_all(&more).await.is_ok() {}
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let headers: BTreeMap<String, String> =
        lines.map(|line| line.split_once(": ").unwrap()).map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < head + 4 + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    Some(Asked { line, headers, body: String::from_utf8(bytes[head + 4..].to_vec()).unwrap() })
}

/// How a run ended, and its log.
pub struct Told {
    pub outcome: RunOutcome,
    pub row: RunRow,
    pub events: Vec<Event>,
}

impl Told {
    /// The data of the first event of a type.
    pub fn data(&self, kind: EventType) -> Value {
        let event = self.events.iter().find(|event| event.kind == kind);
        event.expect("there is such an event").data.as_ref().map_or(Value::Null, Json::value)
    }

    pub fn result(&self) -> Value {
        self.data(EventType::StepCompleted)["result"].clone()
    }

    /// The code of the failed step.
    pub fn code(&self) -> String {
        self.data(EventType::StepFailed)["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn error(&self) -> String {
        self.data(EventType::StepFailed)["error"].as_str().unwrap_or_default().to_owned()
    }
}

pub fn private() -> HttpConfig {
    HttpConfig { allow: Allow::private(), ..HttpConfig::default() }
}

/// Runs a flow with one step `call` to its end. `step` is the value of `http` and what follows it.
pub async fn call(config: HttpConfig, step: &str, input: Value) -> Told {
    let engine = Engine::on(memory()).http(config).start().await.unwrap();
    let told = run(&engine, step, input).await;
    engine.stop().await;
    told
}

pub async fn run(engine: &Engine, step: &str, input: Value) -> Told {
    let text = format!("flow: calls\nsteps:\n  call: {{ http: {step} }}\n");
    let definition =
        read("flow.yaml", &text, Format::Yaml).unwrap_or_else(|error| panic!("{error}")).definition;
    let plan = engine.register(definition, None).await.unwrap();
    let run = engine.run_plan(plan, Json::of(&input).unwrap()).await.unwrap();
    let outcome = tokio::time::timeout(SOON, run.wait()).await.expect("the run ends soon").unwrap();
    let row = engine.row(run.key()).await.unwrap();
    let events = engine.store().events(run.key(), EventQuery::default()).await.unwrap().events;
    Told { outcome, row, events }
}
