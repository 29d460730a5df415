//! A small HTTP client: one request a connection, and streams of events.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Nothing that a test waits for takes longer.
pub const PATIENCE: Duration = Duration::from_secs(90);

pub trait Wire: AsyncBufRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncBufRead + AsyncWrite + Unpin + Send> Wire for T {}

#[derive(Debug, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

pub async fn connect(to: SocketAddr) -> BufReader<TcpStream> {
    let stream = tokio::time::timeout(PATIENCE, TcpStream::connect(to)).await.unwrap().unwrap();
    BufReader::new(stream)
}

/// Writes a request. The connection is closed after its answer.
pub async fn write(wire: &mut impl Wire, line: &str, headers: &[(&str, &str)], body: Option<&str>) {
    let mut request = format!("{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = body {
        request.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
    }
    request.push_str("\r\n");
    request.push_str(body.unwrap_or_default());
    wire.write_all(request.as_bytes()).await.unwrap();
    wire.flush().await.unwrap();
}

/// The status and headers of an answer.
pub async fn head(wire: &mut impl Wire) -> std::io::Result<Answer> {
    let mut line = String::new();
    wire.read_line(&mut line).await?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other(format!("no status in {line:?}")))?;
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        wire.read_line(&mut line).await?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
            None => return Ok(Answer { status, headers, body: String::new() }),
        }
    }
}

/// An answer with its body, which has a length or goes on to the end of the connection.
pub async fn answer(wire: &mut impl Wire) -> std::io::Result<Answer> {
    let read = async {
        let mut answer = head(wire).await?;
        match answer.header("content-length").map(|length| length.parse().unwrap()) {
            Some(length) => {
                let mut body = vec![0; length];
                wire.read_exact(&mut body).await?;
                answer.body = String::from_utf8(body).unwrap();
            }
            None => drop(wire.read_to_string(&mut answer.body).await?),
        }
        Ok(answer)
    };
    tokio::time::timeout(PATIENCE, read).await.map_err(|_| std::io::ErrorKind::TimedOut)?
}

pub async fn get(to: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut wire = connect(to).await;
    write(&mut wire, &format!("GET {path}"), headers, None).await;
    answer(&mut wire).await.unwrap()
}

pub async fn post(to: SocketAddr, path: &str, body: &Value) -> Answer {
    let mut wire = connect(to).await;
    write(&mut wire, &format!("POST {path}"), &[], Some(&body.to_string())).await;
    answer(&mut wire).await.unwrap()
}

/// What came in a stream of events.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Message {
    pub id: String,
    pub event: String,
    pub data: Value,
}

/// A stream of events, read as the standard says.
pub struct Stream<W = BufReader<TcpStream>> {
    wire: W,
    pub answer: Answer,
    /// What to come back with.
    pub last_id: String,
    next_id: String,
    /// Comments that came so far.
    pub comments: usize,
    /// Text that came and is not a whole line yet, and whether the answer came to its end.
    text: String,
    pub ended: bool,
}

impl Stream {
    pub async fn open(to: SocketAddr, path: &str, last_id: &str) -> Stream {
        let headers = [("last-event-id", last_id)];
        Stream::over(connect(to).await, path, if last_id.is_empty() { &[] } else { &headers }).await
    }
}

impl<W: Wire> Stream<W> {
    pub async fn over(mut wire: W, path: &str, headers: &[(&str, &str)]) -> Stream<W> {
        write(&mut wire, &format!("GET {path}"), headers, None).await;
        let answer = tokio::time::timeout(PATIENCE, head(&mut wire)).await.unwrap().unwrap();
        assert_eq!(answer.status, 200, "{path} with {headers:?}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        let last_id = headers.iter().find(|(name, _)| *name == "last-event-id");
        let last_id = last_id.map_or(String::new(), |(_, id)| (*id).to_owned());
        Stream {
            wire,
            answer,
            next_id: last_id.clone(),
            last_id,
            comments: 0,
            text: String::new(),
            ended: false,
        }
    }

    /// The next message; `None` at the end of the answer. One that breaks off is no end.
    pub async fn next(&mut self) -> Option<Message> {
        let next = tokio::time::timeout(PATIENCE, self.read_message());
        next.await.expect("a message comes in time").expect("the stream is whole")
    }

    /// The messages up to the end, which must come.
    pub async fn rest(&mut self) -> Vec<Message> {
        let mut all = Vec::new();
        while let Some(message) = self.next().await {
            all.push(message);
        }
        all
    }

    /// Waits for a comment, and the empty line after it.
    pub async fn comment(&mut self) {
        let before = self.comments;
        let wait = async {
            while !self.read_line().await.unwrap().expect("a line").is_empty() || self.comments == before {}
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("a comment comes in time");
    }

    pub async fn read_message(&mut self) -> std::io::Result<Option<Message>> {
        let (mut event, mut data) = (String::new(), Vec::new());
        loop {
            let Some(line) = self.read_line().await? else { return Ok(None) };
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" if line.is_empty() && !data.is_empty() => {
                    let data = serde_json::from_str(&data.join("\n"))?;
                    return Ok(Some(Message { id: self.last_id.clone(), event, data }));
                }
                "event" => event = value.to_owned(),
                "data" => data.push(value.to_owned()),
                _ => {}
            }
        }
    }

    async fn read_line(&mut self) -> std::io::Result<Option<String>> {
        loop {
            if let Some(end) = self.text.find('\n') {
                let line: String = self.text.drain(..=end).collect();
                let line = line.trim_end_matches('\n');
                self.comments += usize::from(line.starts_with(':'));
                if let Some(id) = line.strip_prefix("id:") {
                    self.next_id = id.trim_start().to_owned();
                }
                if line.is_empty() {
                    self.last_id.clone_from(&self.next_id);
                }
                return Ok(Some(line.to_owned()));
            }
            if self.ended {
                return Ok(None);
            }
            self.read_chunk().await?;
        }
    }

    async fn read_chunk(&mut self) -> std::io::Result<()> {
        let mut size = String::new();
        self.wire.read_line(&mut size).await?;
        let size = usize::from_str_radix(size.trim(), 16)
            .map_err(|_| std::io::Error::other(format!("{size:?} is no size of a chunk")))?;
        let mut chunk = vec![0; size + 2];
        self.wire.read_exact(&mut chunk).await?;
        chunk.truncate(size);
        self.text.push_str(&String::from_utf8(chunk).unwrap());
        self.ended = size == 0;
        Ok(())
    }
}
