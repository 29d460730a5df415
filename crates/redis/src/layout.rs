//! The layout of a commit's arguments, said once: `commit` packs by it, and the script that commits says the same names, which
//! become numbers before it is sent ([`fill_in`]).
//!
//! A commit is its fixed arguments ([`ARG`]); of a new run [`START`]; where the run changes lists [`MOVE`]; then as many as
//! its [`Shape`] says of each of these: leases, fields of other jobs, new jobs, entries of the log, receipts that it opens
//! and receipts that it changes.

use std::collections::HashMap;
use std::fmt::Display;

use crate::args::ScriptArgs;

/// Arguments that belong together, by name. The script says `GROUP_NAME` for the place of one, and `GROUP_ARGS` for
/// their number.
#[derive(Debug)]
pub(crate) struct ArgGroup {
    name: &'static str,
    args: &'static [&'static str],
}

impl ArgGroup {
    pub(crate) const fn size(&self) -> usize {
        self.args.len()
    }

    /// Has the arguments of one such group packed.
    pub(crate) fn pack<T>(&self, args: &mut ScriptArgs, pack: impl FnOnce(&mut ScriptArgs) -> T) -> T {
        let before = args.count();
        let packed = pack(args);
        debug_assert_eq!(args.count() - before, self.size(), "arguments of {}", self.name);
        packed
    }
}

/// The shape; the run; the first line of the row with its line feed, nothing for a new run; the new row up to the date of its last event, and from
/// there on. In the first line of that a `*` is the date of the commit, and a `#` the number of a new run, or else the date of
/// the run's creation.
pub(crate) const ARG: ArgGroup = ArgGroup { name: "ARG", args: &["SHAPE", "RUN", "LINE", "BEFORE", "AFTER"] };
/// What is written once, and `TENANT/HASH` of the definition.
pub(crate) const START: ArgGroup = ArgGroup { name: "START", args: &["SAID", "DEFINITION"] };
/// `TENANT FROM TO FLOW`, the status before and after, `-` where there is none; the end of the run before and after, with a `*`
/// for the date of the commit; how long it is kept, and its number, as the row has them.
pub(crate) const MOVE: ArgGroup =
    ArgGroup { name: "MOVE", args: &["WAY", "FROM_END", "TO_END", "KEPT", "NUMBER"] };
/// A job that is named: its field, and what its text must begin with.
pub(crate) const LEASE: ArgGroup = ArgGroup { name: "LEASE", args: &["FIELD", "FITS"] };
/// A new job: its field, and its text before and after what the server knows.
pub(crate) const JOB: ArgGroup = ArgGroup { name: "JOB", args: &["FIELD", "HEAD", "TAIL"] };
/// A receipt that is opened: its number, its event, its list (`TENANT:STATUS`, or `TENANT:STATUS:WORKER`), what follows its
/// date in there, and what follows its dates in its hash.
pub(crate) const OPENED: ArgGroup =
    ArgGroup { name: "OPENED", args: &["NUMBER", "EVENT", "LIST", "MEMBER", "TEXT"] };
/// A receipt that is changed; empty is what stays.
pub(crate) const CHANGED: ArgGroup =
    ArgGroup { name: "CHANGED", args: &["NUMBER", "STATUS", "WORKER", "OUTCOME"] };

macro_rules! constants {
    ($(#[$doc:meta])* $list:ident: $type:ty { $($(#[$each:meta])* $name:ident = $value:literal,)* }) => {
        $($(#[$each])* pub(crate) const $name: $type = $value;)*
        $(#[$doc])*
        const $list: &[(&str, $type)] = &[$((stringify!($name), $name)),*];
    };
}

constants! { FLAGS: u8 {
    /// The last event is a terminal one.
    ENDS = 1,
    /// The run's key-value state goes.
    CLEAR = 2,
    /// The date of the commit stands between the two parts of the row.
    DATED = 4,
    /// The run changes lists.
    MOVED = 8,
    /// The run had jobs, and has none left.
    LAST_JOB = 16,
    /// The row stays as it is behind its first line.
    REST_STAYS = 32,
    /// There is a [`More`] behind the [`Shape`]. The greatest.
    HAS_MORE = 64,
} }

constants! { USES: u8 {
    FINISH = b'F',
    KEEP = b'K',
    EXPIRED = b'E',
    DUE = b'D',
    UNLEASED = b'U',
    /// However the job is, and whether it is there: of a mend.
    REMOVE = b'R',
} }

constants! { OTHERS: u8 {
    LEAVE = 0,
    DROP = 1,
    HOLD = 2,
    RELEASE = 3,
} }

macro_rules! numbers {
    ($(#[$of:meta])* $struct:ident { $($(#[$doc:meta])* $name:ident: $type:ty = $code:literal,)* }) => {
        $(#[$of])*
        #[derive(Debug, Default, PartialEq)]
        pub(crate) struct $struct {
            $($(#[$doc])* pub(crate) $name: $type,)*
        }

        impl $struct {
            const NAMES: &[&str] = &[$(stringify!($name)),*];
            const FORMATS: &[&str] = &[$($code),*];
            const BYTES: usize = 0 $(+ size_of::<$type>())*;

            pub(crate) fn pack(&self, args: &mut ScriptArgs) {
                $(args.part_bytes(&self.$name.to_le_bytes());)*
            }
        }
    };
}

numbers! {
    /// The numbers of a commit, packed for `struct.unpack`. Behind them come [`More`] of some commits; of each lease, where
    /// `uses` says so, its use and the lines that it adds; of each new job when it is due and how long it is leased for,
    /// negative where it is not to be; of each entry of the log, where there are several, its number of events.
    Shape {
        /// All arguments of the commit, and those before the first lease.
        args: u32 = "I4",
        fixed: u32 = "I4",
        flags: u8 = "I1",
        leases: u32 = "I4",
        adds: u32 = "I4",
        /// The events that it adds to the log.
        new_events: u32 = "I4",
        /// Places in the new row that the server fills in.
        marks: u8 = "I1",
        /// The number of the last event before, and its date.
        events: f64 = "d",
        last: f64 = "d",
    }
}

/// How many of the first numbers of a [`Shape`] tell what has to be read for a commit.
const PLACE: usize = 4;

numbers! {
    /// Numbers that most commits have none of.
    More {
        /// 1 where some lease is used otherwise than to finish it.
        uses: u8 = "I1",
        /// The entries of the log that its events make, where that is more than one.
        entries: u32 = "I4",
        /// Other jobs, and what happens to them.
        others: u32 = "I4",
        what: u8 = "I1",
        /// Receipts that are opened, and that are changed.
        opened: u32 = "I4",
        changed: u32 = "I4",
        /// Where the numbers that the server gives begin; none where its own order is enough.
        hint: f64 = "d",
    }
}

impl Shape {
    pub(crate) fn pack_lease(args: &mut ScriptArgs, kind: u8, lines: u32) {
        args.part_bytes(&[kind]).part_bytes(&lines.to_le_bytes());
    }

    pub(crate) fn pack_job(args: &mut ScriptArgs, due: f64, ttl: f64) {
        args.part_bytes(&due.to_le_bytes()).part_bytes(&ttl.to_le_bytes());
    }

    pub(crate) fn pack_entry(args: &mut ScriptArgs, events: u32) {
        args.part_bytes(&events.to_le_bytes());
    }
}

/// A script with numbers and formats in place of the words of the layout.
pub(crate) fn fill_in(script: &str) -> String {
    let mut words: HashMap<String, String> = HashMap::new();
    let mut word = |name: &str, value: &dyn Display| _ = words.insert(name.to_owned(), value.to_string());
    for ArgGroup { name, args } in [&ARG, &START, &MOVE, &LEASE, &JOB, &OPENED, &CHANGED] {
        // What a start says comes right behind the fixed arguments; all others are counted from where they begin.
        let before = if *name == START.name { ARG.size() } else { 0 };
        args.iter().zip(before + 1..).for_each(|(arg, at)| word(&format!("{name}_{arg}"), &at));
        word(&format!("{name}_ARGS"), &args.len());
    }
    FLAGS.iter().chain(USES).chain(OTHERS).for_each(|(name, value)| word(name, value));
    let sizes =
        [("SHAPE", Shape::BYTES), ("MORE", More::BYTES), ("LEASE", 1 + 4), ("JOB", 8 + 8), ("ENTRY", 4)];
    sizes.iter().for_each(|(name, bytes)| word(&format!("{name}_BYTES"), bytes));
    let place = (&Shape::NAMES[..PLACE], &Shape::FORMATS[..PLACE]);
    let (shape, more) = ((Shape::NAMES, Shape::FORMATS), (More::NAMES, More::FORMATS));
    for (name, (names, formats)) in [("PLACE", place), ("SHAPE", shape), ("MORE", more)] {
        word(name, &format_args!("'<{}'", formats.concat()));
        word(&format!("{name}_NAMES"), &names.join(", "));
    }
    word("MORE_NONE", &vec!["0"; More::NAMES.len()].join(", "));
    let is_part = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    let mut filled = String::with_capacity(script.len());
    let mut rest = script;
    while !rest.is_empty() {
        let end = rest.find(|sign| !is_part(sign)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let (between, after) = after.split_at(after.find(is_part).unwrap_or(after.len()));
        filled += words.get(name).map_or(name, String::as_str);
        filled += between;
        rest = after;
    }
    filled
}
