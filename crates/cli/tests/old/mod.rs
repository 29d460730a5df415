//! Servers of versions that are too old, as far as they are asked before they are refused: an old one cannot be installed
//! beside a new one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

/// A Redis 6.2. Answers for as long as the test lives.
pub fn redis() -> String {
    format!("redis://127.0.0.1:{}", serve(speak_redis))
}

/// A PostgreSQL 14.
pub fn postgres() -> String {
    format!("postgres://me@127.0.0.1:{}/flows", serve(speak_postgres))
}

fn serve(speak: fn(TcpStream) -> std::io::Result<()>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The other side hangs up when it has seen enough.
            std::thread::spawn(move || speak(stream));
        }
    });
    port
}

fn speak_redis(stream: TcpStream) -> std::io::Result<()> {
    let (mut from, mut to) = (BufReader::new(stream.try_clone()?), stream);
    let line = |from: &mut BufReader<TcpStream>| -> std::io::Result<String> {
        let mut text = String::new();
        match from.read_line(&mut text)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(text.trim_end().to_owned()),
        }
    };
    loop {
        let count: usize = line(&mut from)?.trim_start_matches('*').parse().unwrap_or(0);
        let mut words = Vec::new();
        for _ in 0..count {
            line(&mut from)?;
            words.push(line(&mut from)?.to_uppercase());
        }
        let said = "# Server\r\nredis_version:6.2.14\r\nredis_mode:standalone\r\n";
        match words.first().map(String::as_str) {
            Some("INFO") => write!(to, "${}\r\n{said}\r\n", said.len())?,
            Some("HELLO") => write!(to, "-NOPROTO unsupported protocol version\r\n")?,
            _ => write!(to, "+OK\r\n")?,
        }
    }
}

fn speak_postgres(mut stream: TcpStream) -> std::io::Result<()> {
    const TLS: u32 = 80_877_103;
    let number = |stream: &mut TcpStream| -> std::io::Result<u32> {
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    };
    let rest = |stream: &mut TcpStream, length: u32| -> std::io::Result<()> {
        stream.read_exact(&mut vec![0; length as usize])
    };
    let ready = message(b'Z', b"I");
    loop {
        let length = number(&mut stream)?;
        if number(&mut stream)? != TLS {
            rest(&mut stream, length - 8)?;
            break;
        }
        stream.write_all(b"N")?;
    }
    stream.write_all(
        &[message(b'R', &[0; 4]), message(b'S', b"server_version\x0014.9\0"), ready.clone()].concat(),
    )?;
    loop {
        let mut kind = [0];
        stream.read_exact(&mut kind)?;
        let length = number(&mut stream)?;
        rest(&mut stream, length - 4)?;
        // One column of text, named `v`.
        let column =
            [&[0, 1], &b"v\0"[..], &[0; 6], &[0, 0, 0, 25, 255, 255, 255, 255, 255, 255, 0, 0]].concat();
        if kind[0] != b'Q' {
            return Ok(());
        }
        let row = message(b'D', b"\0\x01\0\0\0\x0414.9");
        let answer = [message(b'T', &column), row, message(b'C', b"SELECT 1\0"), ready.clone()].concat();
        stream.write_all(&answer)?;
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((body.len() as u32 + 4).to_be_bytes());
    bytes.extend(body);
    bytes
}
