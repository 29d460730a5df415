//! Made-up bytes for every parser that outsiders reach: `cargo xtask fuzz [TARGET] [--minutes N]`.
//!
//! Without a fuzzer that follows coverage, inputs are seeds that are changed, cut and joined by chance. `FLOWLINE_FUZZ_SECONDS`
//! says for how long, `FLOWLINE_SEED` repeats a run. What was found is kept in `FOUND`.

mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::kit::dice::{Dice, seed};
use targets::{TARGETS, Target};

/// Bytes that have broken a target before, by its name.
const FOUND: &[(&str, &[u8])] = &[
    // Overflowed a stack of 2 MiB: the parser takes each of them for part of the one before.
    ("cel", b"input.l.filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, ).filter(y, )"),
];
/// Of the thread that tries inputs: as much as the server gives what it compiles.
const STACK: usize = 64 << 20;
/// Seconds for a target in the test run.
const SECONDS: u64 = 1;
/// No input takes longer than this, by far: what does is endless work.
const ENDLESS: Duration = Duration::from_secs(20);
/// What parsers find hard.
const PIECES: [&str; 24] = [
    "\"",
    "'",
    "{",
    "}",
    "[",
    "]",
    "${",
    "\\u0000",
    "\u{feff}",
    "\0",
    "\r\n",
    "&a ",
    "*a",
    "<<: ",
    "- ",
    ": ",
    "9223372036854775808",
    "-0",
    "1e999",
    "input",
    ".all(x, ",
    "\\",
    "\u{202e}",
    "%00",
];

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect("a target")
}

/// Changes an input by chance.
fn changed(dice: &mut Dice, pool: &[Vec<u8>]) -> Vec<u8> {
    let any = |dice: &mut Dice| pool[dice.roll(pool.len() as u64) as usize].clone();
    let mut bytes = any(dice);
    for _ in 0..=dice.roll(6) {
        let at = dice.roll(bytes.len() as u64 + 1) as usize;
        let end = (at + dice.roll(16) as usize).min(bytes.len());
        match dice.roll(6) {
            0 => bytes.insert(at, dice.roll(256) as u8),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, PIECES[dice.roll(PIECES.len() as u64) as usize].bytes())),
            3 if at < bytes.len() => bytes[at] ^= 1 << dice.roll(8),
            4 => {
                let again = bytes[at..end].repeat(1 + dice.roll(40) as usize);
                drop(bytes.splice(at..at, again));
            }
            _ => {
                let other = any(dice);
                let from = dice.roll(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
        bytes.truncate(64 << 10);
    }
    bytes
}

fn hold(target: &Target, bytes: &[u8]) {
    // What ends the whole process (an overflow of the stack) is found here.
    let last = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", target.name));
    std::fs::write(last, bytes).expect("the target folder can be written");
    let began = Instant::now();
    let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    let took = began.elapsed();
    assert!(
        ended.is_ok() && took < ENDLESS,
        "{} after {took:?}, on {:?}; mend it, and keep the bytes in FOUND",
        target.name,
        String::from_utf8_lossy(bytes)
    );
}

fn fuzz(name: &'static str) {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || try_inputs(name));
    thread.expect("a thread").join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn try_inputs(name: &str) {
    let target = target(name);
    let mut pool: Vec<Vec<u8>> = target.seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    pool.extend(FOUND.iter().filter(|(of, _)| *of == name).map(|(_, bytes)| bytes.to_vec()));
    pool.iter().for_each(|bytes| hold(target, bytes));
    let seconds = std::env::var("FLOWLINE_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
    let mut dice = Dice(seed());
    let mut tried = 0;
    while Instant::now() < until {
        let bytes = changed(&mut dice, &pool);
        hold(target, &bytes);
        tried += 1;
        // Some changes are changed further.
        if dice.one_in(200) {
            match pool.len() < 200 {
                true => pool.push(bytes),
                false => {
                    let at = target.seeds.len() as u64 + dice.roll((pool.len() - target.seeds.len()) as u64);
                    pool[at as usize] = bytes;
                }
            }
        }
    }
    println!("{name}: {tried} inputs");
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            fuzz(stringify!($name));
        })*

        #[test]
        fn every_target_is_run() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets!(definitions json templates cel cursors leases bodies);
