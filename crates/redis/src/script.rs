//! The scripts. Each is the prelude and its own part, known to the server by the digest of the whole.

use std::sync::LazyLock;

/// A script's text and its digest.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) code: &'static str,
    pub(crate) digest: String,
}

macro_rules! scripts {
    ($($name:ident = $file:literal,)*) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            let code = concat!(include_str!("lua/prelude.lua"), include_str!($file));
            Script { code, digest: redis::Script::new(code).get_hash().to_owned() }
        });)*
    };
}

scripts! {
    APPEND = "lua/append.lua",
    COMMIT = "lua/commit.lua",
    COUNTERS = "lua/counters.lua",
    DEFINE = "lua/define.lua",
    KEYS = "lua/keys.lua",
    LATEST = "lua/latest.lua",
    DOCUMENT = "lua/document.lua",
    EVENTS = "lua/events.lua",
    FORGET = "lua/forget.lua",
    HOLD = "lua/hold.lua",
    LEASE = "lua/lease.lua",
    LOCK = "lua/lock.lua",
    MEND = "lua/mend.lua",
    PAYLOADS = "lua/payloads.lua",
    PEEK = "lua/peek.lua",
    PURGE = "lua/purge.lua",
    QUEUES = "lua/queues.lua",
    RECEIPTS = "lua/receipts.lua",
    RESTORE = "lua/restore.lua",
    STATE = "lua/state.lua",
    SWEEP = "lua/sweep.lua",
    WIPE = "lua/wipe.lua",
}
