//! Threads that may wait for what they read.
//!
//! A store in a file reads by calls that block. From a thread that has other things to do, such a read goes to a thread of its
//! own, and both are woken once more; where every core is busy, each of these is a wait for a processor. A thread that does
//! nothing but answer readers marks itself, and reads in place.

use std::cell::Cell;

thread_local! {
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread: it may wait for its reads.
pub fn wait_here() {
    WAITS.set(true);
}

/// Whether the calling thread may.
pub fn waits_here() -> bool {
    WAITS.get()
}
