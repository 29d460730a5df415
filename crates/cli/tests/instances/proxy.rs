//! A small TCP proxy that misbehaves on demand: what a network does to a connection between an instance and its store.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// New connections are closed at once.
    refuse: AtomicBool,
    /// Nothing moves, and nothing is closed: the other side never learns.
    stall: AtomicBool,
    /// Requests reach the server, its answers reach nobody.
    swallow: AtomicBool,
    /// Milliseconds that every piece waits.
    delay: AtomicU64,
    open: Mutex<BTreeMap<u64, [TcpStream; 2]>>,
    next: AtomicU64,
}

impl Proxy {
    /// In front of a server.
    pub fn before(target: &str) -> Proxy {
        let target = target.to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if !shared.refuse.load(Ordering::Relaxed) {
                    shared.clone().connect(client, &target);
                }
            }
        });
        Proxy { port, state }
    }

    /// Closes every connection; new ones are let through.
    pub fn cut(&self) {
        for (_, ends) in std::mem::take(&mut *self.state.open.lock().unwrap()) {
            for end in ends {
                let _ = end.shutdown(Shutdown::Both);
            }
        }
    }

    /// Lets requests through and their answers vanish, then closes: whatever was asked has an unknown outcome.
    pub fn lose_answers(&self, during: Duration) {
        self.state.swallow.store(true, Ordering::Relaxed);
        thread::sleep(during);
        self.cut();
        self.state.swallow.store(false, Ordering::Relaxed);
    }

    /// Holds back whatever is on its way, both ways, and closes nothing; or lets it go on.
    pub fn stall(&self, stalled: bool) {
        self.state.stall.store(stalled, Ordering::Relaxed);
    }

    /// Makes everything late from now on.
    pub fn delay(&self, delay: Duration) {
        self.state.delay.store(delay.as_millis() as u64, Ordering::Relaxed);
    }

    /// Cut off altogether, or let back in.
    pub fn isolate(&self, isolated: bool) {
        self.state.refuse.store(isolated, Ordering::Relaxed);
        if isolated {
            self.cut();
        }
    }
}

impl State {
    fn connect(self: Arc<State>, client: TcpStream, target: &str) {
        let Ok(server) = TcpStream::connect(target) else { return };
        let (Ok(client_2), Ok(server_2)) = (client.try_clone(), server.try_clone()) else { return };
        let (Ok(client_3), Ok(server_3)) = (client.try_clone(), server.try_clone()) else { return };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().unwrap().insert(id, [client_3, server_3]);
        let other = self.clone();
        thread::spawn(move || self.carry(id, client, server, false));
        thread::spawn(move || other.carry(id, server_2, client_2, true));
    }

    fn carry(&self, id: u64, mut from: TcpStream, mut to: TcpStream, answers: bool) {
        let mut piece = [0; 16 << 10];
        loop {
            let read = match from.read(&mut piece) {
                Ok(0) | Err(_) => break,
                Ok(read) => read,
            };
            while self.stall.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
            let delay = self.delay.load(Ordering::Relaxed);
            if delay > 0 {
                thread::sleep(Duration::from_millis(delay));
            }
            if answers && self.swallow.load(Ordering::Relaxed) {
                continue;
            }
            if to.write_all(&piece[..read]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
        self.open.lock().unwrap().remove(&id);
    }
}
