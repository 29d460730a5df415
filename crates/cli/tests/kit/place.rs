//! A folder with definitions and a store of its own, and the binary run in it.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub const ORDER: &str = r#"
flow: order
input: { type: object, required: [total] }
output: "results.ship"
steps:
  charge:
    command: [sh, -c, "echo '{\"emit\": {\"name\": \"order.charged\", \"payload\": 7}}'"]
    emits: [order.charged]
  ship:
    subscribes: [order.charged]
    command: [sh, -c, "echo shipping; echo '{\"result\": {\"ok\": true}}'"]
"#;

pub const APPROVE: &str = r#"
flow: approve
accepts: { approval.given: { type: object } }
steps:
  act: { subscribes: [approval.given], command: ["true"] }
  ask: { command: ["true"] }
"#;

pub const FAIL: &str = "flow: doomed\nsteps:\n  a: { command: [sh, -c, 'echo no luck >&2; exit 4'] }\n";

/// Runs until a file named `go` is beside the definition.
pub const SLOW: &str =
    "flow: slow\nsteps:\n  a: { command: [sh, -c, 'echo here; while [ ! -e go ]; do sleep 0.02; done'] }\n";

#[derive(Debug)]
pub struct Here {
    pub folder: TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub struct Said {
    pub exit: i32,
    pub out: String,
    pub err: String,
}

impl Here {
    pub fn new() -> Here {
        let here = Here { folder: TempDir::new().unwrap() };
        for (name, text) in
            [("order.yaml", ORDER), ("approve.yaml", APPROVE), ("doomed.yaml", FAIL), ("slow.yaml", SLOW)]
        {
            here.write(name, text);
        }
        here
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flowline"));
        command.args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        for variable in
            ["STORE", "SERVER", "TOKEN", "TENANT", "SLOTS", "QUEUES", "LEASE", "DRAIN", "HTTP_ALLOW", "COLOR"]
        {
            command.env_remove(format!("FLOWLINE_{variable}"));
        }
        command
    }

    pub fn flowline(&self, arguments: &[&str]) -> Said {
        Said::of(self.command(arguments).output().unwrap())
    }

    /// Starts a command and leaves it running.
    pub fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The answer of a command that must end with `exit`.
    pub fn json(&self, exit: i32, arguments: &[&str]) -> Value {
        let said = self.flowline(&[arguments, &["--json"]].concat());
        assert_eq!(said.exit, exit, "{arguments:?}: {said:?}");
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {said:?}"))
    }

    /// Starts a run and leaves it; its id.
    pub fn start(&self, arguments: &[&str]) -> String {
        let answer = self.json(0, &[&["start"], arguments].concat());
        answer["runId"].as_str().unwrap().to_owned()
    }
}

impl Said {
    pub fn of(output: Output) -> Said {
        Said {
            exit: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// What a command that was refused said: its exit code, and texts of its message and remedy.
    #[track_caller]
    pub fn refused(&self, exit: i32, texts: &[&str]) {
        assert_eq!(self.exit, exit, "{self:?}");
        assert!(self.err.contains("error"), "{self:?}");
        for text in texts {
            assert!(self.err.contains(text), "{text:?} is missing: {self:?}");
        }
    }
}
