//! Every code block in the README and the docs runs, in the order of the page, as its reader would run it.
//!
//! A page is one shell session in a folder of its own, with the real binary, real stores and real python3, curl and node.
//! What a block is follows from its language:
//!
//! | language | |
//! |---|---|
//! | `console`, `sh` | run in the page's shell, which ends the test at the first command that fails |
//! | `yaml`, `toml`, `json` that define a flow or a machine | validated, then run until the run has ended |
//! | other `json` | sent to the page's server (`request`), or compared with what comes (`resembles`) |
//! | `python`, `js`, `sql` | run by `python3`, `node`, and `sqlite3` or `psql` on the page's store |
//! | `rust` | a doctest; or with `example`, a program of `crates/cli/examples` with the same text, and run |
//! | `text`, `mermaid` | not run: output; with `prints`, that of this command, word by word; with `resembles`, by its shape |
//!
//! What a block needs beyond that stands in a comment above it, which is not rendered:
//!
//! ```text
//! <!-- test skip: why it cannot run here -->
//! <!-- test
//! input: {"total": 20000}
//! script weigh.sh: echo '{"result": {"kg": 3}}'
//! after: flowline send $RUN approval.given
//!   flowline work --until-idle
//! -->
//! ```
//!
//! | key | |
//! |---|---|
//! | `skip` | the block is not run; the value says why |
//! | `store` | from here on `FLOWLINE_STORE` is a fresh store on `sqlite` (as at the start), `postgres`, `redis` or `redis-cluster` |
//! | `let A = B` | from here on read A as B, where A stands as a word of its own |
//! | `before`, `after` | shell code around the block |
//! | `file` | save the block under this name; some other block or directive of the page must use it |
//! | `background` | start the block and leave it running; `server` waits until it answers `/readyz` |
//! | `request` | `METHOD PATH`: send the block to the server at `FLOWLINE_LISTEN`; `heard` prints the answer, as it does after a `curl` |
//! | `resembles` | a command whose output the block shows; [shown.py](shown.py) says what must be the same |
//! | `example` | the Rust program that the block is; shell code runs it as `example NAME` |
//! | `input`, `ends`, `script NAME`, `run` | of a definition: the run's input, its status at the end, what a program of its steps does, and how to run it if not by `flowline run`; then `RUN` must be set to its id |
//!
//! [prelude.sh](prelude.sh) has the shell functions that directives may use.
#![cfg(unix)]

mod page;
mod play;
mod script;

/// A test for each page.
macro_rules! pages {
    ($($name:ident: $path:literal,)*) => {
        const PAGES: &[&str] = &[$($path),*];
        $(#[test] fn $name() { play::page($path); })*
    };
}

pages! {
    readme: "README.md",
    architecture: "ARCHITECTURE.md",
    contributing: "CONTRIBUTING.md",
    examples: "examples/README.md",
    contents: "docs/README.md",
    checker: "docs/checker.md",
    checks: "docs/checks.md",
    cli: "docs/cli.md",
    command_protocol: "docs/command-protocol.md",
    console: "docs/console.md",
    deploying: "docs/deploying.md",
    events: "docs/events.md",
    file_format: "docs/file-format.md",
    glossary: "docs/glossary.md",
    growing: "docs/growing.md",
    http_steps: "docs/http-steps.md",
    live: "docs/live.md",
    locks: "docs/locks.md",
    machines: "docs/machines.md",
    metrics: "docs/metrics.md",
    operations: "docs/operations.md",
    postgres: "docs/postgres.md",
    recipes: "docs/recipes.md",
    redis: "docs/redis.md",
    rust: "docs/rust.md",
    security: "docs/security.md",
    server: "docs/server.md",
    simulate: "docs/simulate.md",
    simulation: "docs/simulation.md",
    sqlite: "docs/sqlite.md",
    worker_protocol: "docs/worker-protocol.md",
    workers: "docs/workers.md",
    writing_a_store: "docs/writing-a-store.md",
    writing_flows: "docs/writing-flows.md",
}

#[test]
fn every_page_of_the_docs_is_listed_here() {
    let mut there: Vec<String> = std::fs::read_dir(play::root().join("docs"))
        .expect("docs is there")
        .map(|entry| format!("docs/{}", entry.expect("an entry").file_name().to_string_lossy()))
        .filter(|path| path.ends_with(".md"))
        .collect();
    there.sort();
    let listed: Vec<&str> = PAGES.iter().copied().filter(|path| path.starts_with("docs/")).collect();
    assert_eq!(there, listed);
}
