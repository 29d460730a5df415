//! The flow that the faults hit, and the ledger that its steps keep of themselves, outside the store.

use flowline::core::{RunId, RunKey, Tenant};
use flowline_check::{AttemptReport, Effect, Effects};

use crate::kit::place::Here;

/// A diamond, a step that fails at first, one that emits in its middle, and an end that waits for an event from outside.
pub const FLOW: &str = r#"
flow: hit
accepts: { approved: }
steps:
  order: { command: [sh, step.sh], returns: ordered }
  charge: { subscribes: [ordered], command: [sh, flaky.sh], returns: charged, retry: { attempts: 9, delay: 10ms } }
  reserve: { subscribes: [ordered], command: [sh, early.sh], emits: [reserved] }
  ship: { subscribes: [charged, reserved], command: [sh, step.sh], returns: shipped }
  close: { subscribes: [shipped, approved], command: [sh, step.sh] }
"#;

const STEP: &str = r#"
say() { echo "$FLOWLINE_RUN_ID $FLOWLINE_STEP $FLOWLINE_ATTEMPT $1" >> ledger; }
say began
sleep 0.05
say done
"#;

const FLAKY: &str = r#"
say() { echo "$FLOWLINE_RUN_ID $FLOWLINE_STEP $FLOWLINE_ATTEMPT $1" >> ledger; }
say began
sleep 0.02
if [ "$FLOWLINE_ATTEMPT" -lt 2 ]; then say failed; exit 1; fi
say done
"#;

const EARLY: &str = r#"
say() { echo "$FLOWLINE_RUN_ID $FLOWLINE_STEP $FLOWLINE_ATTEMPT $1" >> ledger; }
say began
say reserved
echo '{"emit_now": {"name": "reserved", "payload": 1}}'
sleep 0.05
say done
"#;

pub fn here() -> Here {
    let here = Here::new();
    for (name, text) in
        [("hit.yaml", FLOW), ("step.sh", STEP), ("flaky.sh", FLAKY), ("early.sh", EARLY), ("ledger", "")]
    {
        here.write(name, text);
    }
    here
}

/// What the steps wrote, in order.
pub fn read(here: &Here) -> Effects {
    read_in(here, "default")
}

/// As [`read`], where the steps are of another queue.
pub fn read_in(here: &Here, queue: &str) -> Effects {
    let text = std::fs::read_to_string(here.path("ledger")).unwrap();
    let effect = |line: &str| {
        let [run, step, attempt, what] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line:?}") };
        let run = RunKey::new(Tenant::default(), RunId::new(run).unwrap());
        let (step, attempt) = (step.into(), attempt.parse().unwrap());
        let (worker, queue) = ("any".into(), queue.into());
        match what {
            "began" => Effect::Began { worker, queue, run, step, attempt, input: None },
            "done" => Effect::Ended { worker, queue, run, step, attempt, reported: AttemptReport::Done },
            "failed" => Effect::Ended { worker, queue, run, step, attempt, reported: AttemptReport::Failed },
            name => Effect::EmittedNow { run, step, attempt, name: name.to_owned() },
        }
    };
    Effects { log: text.lines().map(effect).collect(), ..Effects::default() }
}
