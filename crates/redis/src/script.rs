//! The scripts. Each is the prelude and its own part, known to the server by the digest of the whole.

use std::sync::LazyLock;

use crate::layout;

const PRELUDE: &str = include_str!("lua/prelude.lua");

/// A script's text and its digest.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) code: String,
    pub(crate) digest: String,
}

impl Script {
    fn new(parts: &[&str]) -> Script {
        let code = parts.concat();
        let digest = redis::Script::new(&code).get_hash().to_owned();
        Script { code, digest }
    }
}

pub(crate) static COMMIT: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[PRELUDE, &layout::fill_in(include_str!("lua/commit.lua"))]));

macro_rules! scripts {
    ($($name:ident = $file:literal,)*) => {
        $(pub(crate) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(&[PRELUDE, include_str!($file)]));)*
    };
}

scripts! {
    APPEND = "lua/append.lua",
    COUNTERS = "lua/counters.lua",
    DEFINE = "lua/define.lua",
    KEYS = "lua/keys.lua",
    LATEST = "lua/latest.lua",
    DOCUMENT = "lua/document.lua",
    EVENTS = "lua/events.lua",
    FORGET = "lua/forget.lua",
    HOLD = "lua/hold.lua",
    LEASE = "lua/lease.lua",
    LISTS = "lua/lists.lua",
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
    UNLISTED = "lua/unlisted.lua",
    WIPE = "lua/wipe.lua",
}
