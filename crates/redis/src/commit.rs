//! A commit as arguments of its script (`layout`), and what its answer says.

use std::borrow::Cow;

use flowline_core::Time;
use flowline_store::{Base, Commit, CommitError, Committed, JobKey, LeaseUse, NewJob, Others, StoreError};

use crate::answer::number;
use crate::args::ScriptArgs;
use crate::encode::{self, began, due, handoff, millis, status_text};
use crate::known::{Head, KnownRow};
use crate::layout::{self, More, Shape};
use crate::log;
use crate::names;
use crate::receipt;

/// How a commit differs from a plain one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitKind {
    Commit,
    /// Jobs are mended: the row stays but for its version and jobs, and named jobs go without a check.
    Mend,
}

/// A commit, ready to be sent.
#[derive(Debug)]
pub(crate) struct PackedCommit {
    pub(crate) args: ScriptArgs,
    /// Commands that it makes the server run, and some more.
    pub(crate) commands: usize,
    /// None where the row is only asked for.
    pub(crate) landing: Option<Landing>,
}

/// What is known of a commit if it lands, but for what only the server knows.
#[derive(Debug)]
pub(crate) struct Landing {
    committed: Committed,
    /// The date of the last event before it, and whether it adds some.
    last: Time,
    is_dated: bool,
    /// The first line of the new row before and after the date of its last event.
    around_date: (String, String),
    failure: String,
}

/// What a script says of a commit.
#[derive(Debug)]
pub(crate) enum CommitAnswer {
    Landed(Committed, KnownRow),
    Refused(CommitError),
    /// The row begins with another line.
    Changed(KnownRow),
}

/// Packs a commit to a run whose row begins like this; with that not known, or known of another version, it only asks.
pub(crate) fn pack(
    commit: &Commit,
    run: &str,
    kind: CommitKind,
    known: Option<&KnownRow>,
    hint: u64,
) -> Result<PackedCommit, StoreError> {
    let (line, mut failure, head) = match &commit.base {
        Base::New(new) => {
            let kept = new.retain.map_or(Cow::Borrowed("0"), |own| format!("0:{}", own.code()).into());
            let head = Head {
                version: 0,
                status: "-".into(),
                events: 0,
                last: 0,
                keys: Vec::new(),
                started: "-".into(),
                ended: "-".into(),
                kept,
                number: "#".into(),
                flow: names::encode(&new.flow).into(),
            };
            (None, String::new(), head)
        }
        Base::Version(decided) => match known.map(|known| Ok((known, known.head()?))).transpose()? {
            Some((known, head)) if head.version == *decided => {
                (Some(&known.line), known.failure.clone(), head)
            }
            _ => return Ok(question(run)),
        },
    };
    if let Some(new) = &commit.index.failure {
        failure = encode::failure_text(Some(new))?;
    }
    let is_new = line.is_none();
    let ends = commit.events.iter().any(|event| event.kind.is_terminal());
    let jobs = NextJobs::of(commit, &head);
    let next = Head { keys: jobs.keys, ..next_head(commit, kind, &head, ends) };
    let is_dated = is_new || !commit.events.is_empty();
    let moves = kind == CommitKind::Commit && (ends || head.status != next.status);
    let (mut before, after) = next.around_date();
    if !is_dated {
        before += &head.last.to_string();
    }

    let size = |len: usize| len as u32;
    let entries = log::entries(&commit.events).count();
    let opened = commit.receipts.iter().filter(|change| change.opened.is_some()).count();
    let changed = commit.receipts.len() - opened;
    let leases = commit.leases.len() + usize::from(jobs.clash.is_some());
    let is_finish = |lease: &LeaseUse| matches!(lease, LeaseUse::Finish { .. } | LeaseUse::Whole { .. });
    let more = More {
        uses: u8::from(!commit.leases.iter().all(is_finish)),
        entries: if entries > 1 { size(entries) } else { 0 },
        others: size(jobs.others.len()),
        what: match commit.others {
            _ if jobs.others.is_empty() => layout::LEAVE,
            Others::Leave => layout::LEAVE,
            Others::Drop => layout::DROP,
            Others::Hold => layout::HOLD,
            Others::Release => layout::RELEASE,
        },
        opened: size(opened),
        changed: size(changed),
        hint: hint as f64,
    };
    let flags = [
        (layout::ENDS, ends),
        (layout::CLEAR, commit.clear_state),
        (layout::DATED, is_dated),
        (layout::MOVED, moves),
        (layout::LAST_JOB, next.keys.is_empty() && !head.keys.is_empty()),
        (layout::REST_STAYS, kind == CommitKind::Mend),
        (layout::HAS_MORE, more != More::default()),
    ];
    let fixed = layout::ARG.size()
        + if is_new { layout::START.size() } else { 0 }
        + if moves { layout::MOVE.size() } else { 0 };
    let shape = Shape {
        args: size(
            fixed
                + leases * layout::LEASE.size()
                + jobs.others.len()
                + commit.add.len() * layout::JOB.size()
                + entries
                + opened * layout::OPENED.size()
                + changed * layout::CHANGED.size(),
        ),
        fixed: size(fixed),
        flags: flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).sum(),
        leases: size(leases),
        adds: size(commit.add.len()),
        new_events: size(commit.events.len()),
        marks: after.matches(['*', '#']).count() as u8,
        events: head.events as f64,
        last: head.last as f64,
    };

    let mut args = ScriptArgs::new();
    layout::ARG.pack(&mut args, |args| {
        pack_shape(args, &shape, &more, commit, kind);
        args.text(run);
        match line {
            Some(line) => args.part_bytes(line.as_bytes()).bytes(b"\n"),
            None => args.text(""),
        };
        args.text(&before).part_bytes(after.as_bytes());
        match kind {
            CommitKind::Commit => {
                encode::end_of_row(args.part_bytes(b"\n"), &commit.index, &failure, &commit.state)
            }
            CommitKind::Mend => _ = args.end(),
        }
    });
    if let Base::New(new) = &commit.base {
        layout::START.pack(&mut args, |args| encode::start(args, run, new))?;
    }
    if moves {
        layout::MOVE.pack(&mut args, |args| {
            let tenant = run.split('/').next().unwrap_or_default();
            args.part(format_args!("{tenant} {} {} {}", head.status, next.status, next.flow)).end();
            args.text(&head.ended).text(&next.ended).text(&next.kept).text(&next.number);
        });
    }
    for lease in &commit.leases {
        layout::LEASE.pack(&mut args, |args| {
            args.part(format_args!("{}:{run}", lease.key().number())).end();
            encode::lease_use(args, lease);
        });
    }
    if let Some(key) = jobs.clash {
        // No job begins like this: the commit is refused for this key, if for none before it.
        layout::LEASE.pack(&mut args, |args| _ = args.part(format_args!("{key}:{run}")).end().text("!"));
    }
    for key in &jobs.others {
        args.part(format_args!("{key}:{run}")).end();
    }
    for job in &commit.add {
        layout::JOB.pack(&mut args, |args| {
            args.part(format_args!("{}:{run}", job.key.number())).end();
            encode::new_job(args, job);
        });
    }
    for entry in log::entries(&commit.events) {
        entry.iter().for_each(|event| log::event(&mut args, event));
        args.end();
    }
    for change in &commit.receipts {
        if let Some(opened) = &change.opened {
            let open = |args: &mut ScriptArgs| receipt::open(args, &commit.run, &next.flow, change, opened);
            layout::OPENED.pack(&mut args, open);
        }
    }
    for change in commit.receipts.iter().filter(|change| change.opened.is_none()) {
        layout::CHANGED.pack(&mut args, |args| receipt::change(args, change));
    }
    debug_assert_eq!(args.count(), shape.args as usize);

    let asked = commit.add.iter().filter(|job| handoff(job).is_some());
    let committed = Committed {
        version: next.version,
        first_seq: head.events + 1,
        ts: Time::default(),
        granted: asked.map(|job| job.key).collect(),
    };
    let last = Time::from_millis(head.last);
    let landing = Landing { committed, last, is_dated, around_date: (before, after), failure };
    let jobs = leases + jobs.others.len() + commit.add.len();
    let commands = 6 + commit.events.len() + 2 * jobs + 3 * commit.receipts.len();
    Ok(PackedCommit { args, commands, landing: Some(landing) })
}

/// A commit to a row that begins with no line that there is.
fn question(run: &str) -> PackedCommit {
    let mut args = ScriptArgs::new();
    let size = layout::ARG.size() as u32;
    layout::ARG.pack(&mut args, |args| {
        Shape { args: size, fixed: size, ..Shape::default() }.pack(args);
        args.end().text(run).text("\n").text("").text("");
    });
    PackedCommit { args, commands: 1, landing: None }
}

fn pack_shape(args: &mut ScriptArgs, shape: &Shape, more: &More, commit: &Commit, kind: CommitKind) {
    shape.pack(args);
    if shape.flags & layout::HAS_MORE != 0 {
        more.pack(args);
    }
    if more.uses > 0 {
        for lease in &commit.leases {
            let (kind, lines) = match *lease {
                LeaseUse::Finish { .. } | LeaseUse::Whole { .. } => (layout::FINISH, 0),
                LeaseUse::Keep { lines, .. } => (layout::KEEP, lines),
                LeaseUse::Expired { .. } => (layout::EXPIRED, 0),
                LeaseUse::Due { .. } => (layout::DUE, 0),
                LeaseUse::Unleased { .. } if kind == CommitKind::Mend => (layout::REMOVE, 0),
                LeaseUse::Unleased { .. } => (layout::UNLEASED, 0),
            };
            Shape::pack_lease(args, kind, lines);
        }
        // A key that is not free is refused like one.
        if shape.leases as usize > commit.leases.len() {
            Shape::pack_lease(args, layout::FINISH, 0);
        }
    }
    for job in &commit.add {
        let ttl = handoff(job).map_or(-1.0, |asked| millis(asked.ttl) as f64);
        Shape::pack_job(args, due(job) as f64, ttl);
    }
    for entry in log::entries(&commit.events).filter(|_| more.entries > 0) {
        Shape::pack_entry(args, entry.len() as u32);
    }
    args.end();
}

/// The jobs of a run after a commit.
struct NextJobs {
    /// As the row has them.
    keys: Vec<i64>,
    /// Those that the commit does not name and yet changes.
    others: Vec<i64>,
    /// A key that is added, and not free.
    clash: Option<i64>,
}

impl NextJobs {
    fn of(commit: &Commit, head: &Head<'_>) -> NextJobs {
        let mut keys = head.keys.clone();
        let mut kept = Vec::new();
        for lease in &commit.leases {
            let key = lease.key().number();
            match lease {
                LeaseUse::Keep { .. } => kept.push(key),
                _ => keys.retain(|known| *known != key),
            }
        }
        let mut others = Vec::new();
        if commit.others != Others::Leave {
            others.extend(keys.iter().copied().filter(|key| !kept.contains(key)));
        }
        if commit.others == Others::Drop {
            keys.retain(|key| kept.contains(key));
        }
        let mut clash = None;
        for NewJob { key, .. } in &commit.add {
            let key = key.number();
            if keys.contains(&key) {
                clash = Some(key);
                break;
            }
            keys.push(key);
        }
        NextJobs { keys, others, clash }
    }
}

/// The first line of the row after a commit, but for its jobs. A `*` is left to the server, and a `#`: see [`layout::ARG`].
fn next_head<'a>(commit: &Commit, kind: CommitKind, head: &Head<'a>, ends: bool) -> Head<'a> {
    let mut next = Head { version: head.version + 1, ..head.clone() };
    next.events += commit.events.len() as u64;
    if kind == CommitKind::Commit {
        next.status = status_text(commit.index.status, commit.index.state.as_deref());
    }
    let begins = commit.events.iter().any(|event| event.begins(Time::default()).is_some());
    if next.started == "-" && begins {
        let began = began(&commit.events);
        next.started = began.map_or(Cow::Borrowed("*"), |began| began.millis().to_string().into());
    } else if next.started == "-" && ends {
        // One that ends without having begun is dated by its creation.
        next.started = if head.version == 0 { "*" } else { "#" }.into();
    }
    if ends {
        next.ended = "*".into();
    }
    next
}

/// Reads an answer: what refuses a commit, how the row begins if it is another one, or `L`, what the server was asked for and
/// the keys of jobs that were not handed on; nothing at all where it is as expected.
pub(crate) fn read(
    answer: &str,
    now: Time,
    base: &Base,
    landing: Option<Landing>,
) -> Result<CommitAnswer, StoreError> {
    let refused = match (answer.as_bytes().first(), base) {
        (Some(b'E'), _) => CommitError::Exists,
        (Some(b'D'), Base::New(new)) => CommitError::UnknownDefinition(new.definition.clone()),
        (Some(b'S'), _) => CommitError::StaleLease(JobKey::from_number(number(&answer[1..])?)),
        (Some(b'R'), Base::Version(expected)) => {
            let known = answer[1..].split_once('\n').and_then(|(line, second)| KnownRow::read(line, second));
            if known.is_none() && answer.len() > 1 {
                return Err(StoreError::Damaged(format!("a row begins with {:?}", &answer[1..])));
            }
            let found = known.as_ref().map(|known| Ok(known.head()?.version)).transpose()?;
            match known.filter(|_| found == Some(*expected)) {
                Some(known) => return Ok(CommitAnswer::Changed(known)),
                None => CommitError::Conflict { expected: *expected, found },
            }
        }
        _ => {
            let unasked = || StoreError::Damaged(format!("an unexpected reply to a commit: {answer:?}"));
            let (committed, known) = landing.ok_or_else(unasked)?.landed(answer, now)?;
            return Ok(CommitAnswer::Landed(committed, known));
        }
    };
    Ok(CommitAnswer::Refused(refused))
}

impl Landing {
    fn landed(self, answer: &str, now: Time) -> Result<(Committed, KnownRow), StoreError> {
        let Landing { mut committed, last, is_dated, around_date: (mut line, mut after), failure } = self;
        committed.ts = now.max(last);
        let date = committed.ts.millis().to_string();
        if let Some((server, declined)) = answer.strip_prefix('L').and_then(|said| said.split_once(' ')) {
            after = after.replace('#', server);
            for key in declined.split(',').filter(|key| !key.is_empty()) {
                let key = JobKey::from_number(number(key)?);
                committed.granted.retain(|granted| *granted != key);
            }
        }
        if is_dated {
            line += &date;
        }
        line += &after.replace('*', &date);
        Ok((committed, KnownRow { line, failure }))
    }
}
