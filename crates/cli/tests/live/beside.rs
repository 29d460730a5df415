//! What hostile clients cost healthy ones: the same requests at the same rate, alone and beside an attack. Nothing is asserted;
//! the figures are printed.
//!
//! The attackers are a process of their own, which yields to everybody else: what it costs to make an attack is not what it
//! costs to withstand one, and here both are paid by one machine.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::live::hostile::{deep_json, endless_body, huge_body, say_slowly};
use crate::live::many::clients;
use crate::live::served::Server;
use crate::live::watched::{FLOW, learn};

/// Names the server to the process that attacks it.
const ATTACKED: &str = "FLOWLINE_ATTACKED";
const ROUNDS: usize = 3;
const HEALTHY_FOR: Duration = Duration::from_secs(15);
const BETWEEN: Duration = Duration::from_millis(5);

/// `FLOWLINE_FIGURES=1 cargo test -p flowline-cli --test all live::beside -- --nocapture`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_of_healthy_requests_beside_hostile_ones() {
    if std::env::var_os("FLOWLINE_FIGURES").is_none() {
        println!(
            "skipped: figures mean something on a quiet machine only; ask for them with FLOWLINE_FIGURES=1"
        );
        return;
    }
    let folder = TempDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let to = server.address;
    learn(to).await;
    healthy(to);
    for _ in 0..ROUNDS {
        let idle = healthy(to);
        let attack = Attack::start(to);
        // All of its connections are open.
        std::thread::sleep(Duration::from_secs(3));
        let beside = healthy(to);
        drop(attack);
        std::thread::sleep(Duration::from_secs(2));
        let times = beside.1.as_secs_f64() / idle.1.as_secs_f64();
        println!("p50 and p99: alone {idle:.2?}, beside hostile ones {beside:.2?}; p99 {times:.2} times");
    }
}

/// How long good requests take, 200 a second on one connection: the median, and what one in a hundred exceeds.
fn healthy(to: SocketAddr) -> (Duration, Duration) {
    let start = format!(
        "POST /v1/flows/{FLOW}/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    let list = "GET /v1/runs?limit=10 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_nodelay(true).unwrap();
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < HEALTHY_FOR {
        let next = began + BETWEEN * times.len() as u32;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let asked = Instant::now();
        stream
            .write_all(if times.len().is_multiple_of(4) { start.as_bytes() } else { list.as_bytes() })
            .unwrap();
        read(&mut stream);
        times.push(asked.elapsed());
    }
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Reads an answer, which must be a good one.
fn read(stream: &mut TcpStream) {
    let (mut answer, mut part) = (Vec::new(), [0; 16 << 10]);
    loop {
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "the server closed a good connection");
        answer.extend_from_slice(&part[..count]);
        let Some(head) = answer.windows(4).position(|end| end == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&answer[..head]).unwrap();
        assert!(text.starts_with("HTTP/1.1 20"), "{text}");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if answer.len() == head + 4 + length.parse::<usize>().unwrap() {
            return;
        }
    }
}

/// Attackers at work, until it is dropped.
struct Attack(Child);

impl Attack {
    fn start(to: SocketAddr) -> Attack {
        let tests = std::env::current_exe().unwrap();
        let mut command = Command::new("chrt");
        command.args(["--idle", "0"]).arg(tests).args(["--exact", "beside::attack", "--nocapture"]);
        Attack(command.env(ATTACKED, to.to_string()).stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A thousand connections that say nothing, a hundred that send a byte a second, and bodies that are too large or too deep,
/// again and again. Does nothing unless it is told whom to attack.
#[tokio::test]
async fn attack() {
    let Ok(to) = std::env::var(ATTACKED) else { return };
    let to: SocketAddr = to.parse().unwrap();
    for _ in 0..clients() {
        tokio::spawn(async move {
            loop {
                say_slowly(to, "").await;
            }
        });
    }
    for _ in 0..100 {
        tokio::spawn(async move {
            loop {
                say_slowly(to, "GET /livez HTTP/1.1\r\nx: ").await;
            }
        });
    }
    loop {
        let answers = tokio::join!(huge_body(to), endless_body(to), deep_json(to));
        assert_eq!((answers.0.status, answers.1.status, answers.2.status), (413, 413, 400));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
