//! A user's flow in the simulator: whatever it declares, the worlds come to rest and keep every promise.

use flowline_core::EventType;
use flowline_core::definition::{Format, read};
use flowline_sim::program::Stub;
use flowline_sim::report::{RunEnding, SimulationReport};
use flowline_sim::trial::{Tell, play};

fn report(text: &str, seeds: u64) -> SimulationReport {
    let read =
        read("flow.yaml", text, Format::Yaml).unwrap_or_else(|wrong| panic!("{}", wrong.render(false)));
    let mut stub = Stub::new(read.definition.clone(), None).unwrap();
    let mut report = SimulationReport::new(read.definition);
    for seed in 0..seeds {
        let program = stub.program(seed).unwrap();
        report.add(play(&program, Tell::Nothing).trial());
    }
    assert!(report.violations().is_empty(), "{:?}", report.violations());
    report
}

fn seeds_of(report: &SimulationReport, ending: RunEnding) -> u64 {
    report
        .outcomes()
        .iter()
        .filter(|outcome| outcome.status == ending)
        .map(|outcome| outcome.sight.seeds)
        .sum()
}

#[test]
fn days_of_waiting_and_hours_of_retries_are_played_to_their_end() {
    let report = report(
        "flow: f\ntimeout: 30d\naccepts: [approved]\nsteps:\n\
         \x20 ask: { command: [x], timeout: 8h, retry: { attempts: 20, delay: 1h, max_delay: 1d }, returns: asked }\n\
         \x20 act: { command: [x], subscribes: [asked, approved] }\n",
        60,
    );
    assert_eq!(seeds_of(&report, RunEnding::Unfinished) + seeds_of(&report, RunEnding::Waiting), 0);
    let out_of_time = report.failures().into_iter().find(|failure| failure.step.is_none()).unwrap();
    assert_eq!(out_of_time.path, ["start", "the run takes longer than 30d", "the run fails"]);
}

#[test]
fn many_steps_side_by_side_come_to_an_end() {
    let steps: String =
        (0..60).map(|at| format!("  s{at}: {{ command: [x], retry: {{ attempts: 5 }} }}\n")).collect();
    let report = report(&format!("flow: wide\nsteps:\n{steps}"), 20);
    assert_eq!(seeds_of(&report, RunEnding::Unfinished), 0);
    assert_eq!(report.never_run(), [""; 0]);
}

#[test]
fn a_condition_on_what_came_first_is_played_both_ways() {
    let report = report(
        "flow: f\nsteps:\n\
         \x20 a: { command: [x], returns: a.done }\n\
         \x20 b: { command: [x], returns: b.done }\n\
         \x20 c: { command: [x], subscribes: [{ any: [a.done, b.done] }], if: 'has(events.a)' }\n",
        60,
    );
    assert_eq!(report.guessed(), [""; 0]);
    assert!(seeds_of(&report, RunEnding::Completed) > 0);
}

#[test]
fn a_step_that_is_cut_off_after_it_acted_acts_again() {
    let text = "flow: f\nsteps:\n  a: { command: [x] }\n";
    let read = read("flow.yaml", text, Format::Yaml).unwrap();
    let mut stub = Stub::new(read.definition.clone(), None).unwrap();
    let twice = report(text, 150).twice();
    let cut_off = twice.first().unwrap_or_else(|| panic!("150 seeds interrupt no step after it acted"));
    let played = play(&stub.program(cut_off.sight.seed).unwrap(), Tell::Story);
    assert!(played.effects.len() > 1, "{:?}", played.effects);
    assert!(played.log.iter().any(|event| event.kind == EventType::StepRetry));
    assert!(!played.story.is_empty());
}

/// Amounts between 100 and 1,000 have no way out of review; nobody is reminded, and nothing leads to `audit`.
const GAP: &str = r#"
machine: gap
input: { type: object, required: [amount], properties: { amount: { type: integer, minimum: 1, maximum: 2000 } } }
events: [submit, approve, note]
context: { amount: input.amount }
states:
  draft: { on: { submit: { to: review, actions: [assign] } } }
  review:
    entry: [log]
    on:
      approve:
        - { to: approved, if: context.amount <= 100 }
        - { to: director, if: context.amount >= 1000 }
      note: { actions: [remind] }
  director:
    on: { approve: approved }
    after: { in: 48h, to: audit, if: context.amount < 0 }
  audit: { final: failed }
  approved: { final: true, entry: [pay] }
actions:
  assign: { command: [x], on_failure: continue }
  log: { command: [x], after: [assign], on_failure: continue }
  pay: { command: [x], retry: 2 }
  remind: { command: [x], if: "context.amount == 0" }
"#;

#[test]
fn a_machine_that_can_be_stuck_is_found_with_its_events_and_a_seed_that_replays_it() {
    let report = report(GAP, 150);
    let stuck = report.stuck();
    assert_eq!(stuck.iter().map(|one| one.state.as_str()).collect::<Vec<_>>(), ["review"]);
    assert_eq!(stuck[0].events, ["approve"]);
    let amount = stuck[0].context["amount"].as_i64().unwrap();
    assert!((101..1000).contains(&amount), "{amount}");
    let lost: Vec<(String, String)> = report.lost().into_iter().map(|one| (one.event, one.state)).collect();
    assert_eq!(lost, [("approve".to_owned(), "review".to_owned())]);
    assert_eq!(report.never_run(), ["remind"]);
    assert_eq!(report.never_entered(), ["audit"]);
    assert!(seeds_of(&report, RunEnding::Completed) > 0 && seeds_of(&report, RunEnding::Failed) > 0);
    let failure = &report.failures()[0];
    assert_eq!(failure.step.as_deref(), Some("pay"));
    assert_eq!(failure.path[..4], ["start", "draft", "submit", "review"]);

    let definition = read("gap.yaml", GAP, Format::Yaml).unwrap().definition;
    let again = Stub::new(definition, None).unwrap().program(stuck[0].sight.seed).unwrap();
    let played = play(&again, Tell::Story);
    let last = played.log.iter().rev().find(|event| event.kind == EventType::StateChanged).unwrap();
    assert_eq!(last.data.as_ref().unwrap().value()["to"], "review");
    assert!(played.story.iter().any(|line| line.contains("approve")), "{:?}", played.story);
}

#[test]
fn machines_with_timers_that_come_back_and_times_from_their_context_are_played() {
    let report = report(
        "machine: m\nevents: [go, later]\nstates:\n\
         \x20 a: { on: { go: b, later: { set: { due: payload.due } } }, after: [{ in: 30d, to: a }, { at: context.due, to: b }] }\n\
         \x20 b: { on: { go: { to: c, if: 'payload.ok && context.tries < 3' } }, after: { in: 1s, to: a, set: { tries: context.tries + 1 } } }\n\
         \x20 c: { final: true }\n",
        15,
    );
    assert!(report.stuck().is_empty(), "{:?}", report.stuck());
    assert!(seeds_of(&report, RunEnding::Completed) > 0, "{:?}", report.outcomes());
    assert_eq!(report.never_entered(), [""; 0]);
}

#[test]
fn a_guard_that_asks_for_somebody_of_the_input_is_passed_and_an_example_is_played_to_its_ends() {
    let text = include_str!("../../../examples/expense.yaml");
    let report = report(text, 200);
    assert_eq!(report.never_entered(), [""; 0]);
    assert_eq!(report.never_run(), [""; 0]);
    assert!(report.stuck().is_empty(), "{:?}", report.stuck());
    assert!(seeds_of(&report, RunEnding::Completed) > 0 && seeds_of(&report, RunEnding::Failed) > 0);
    let lost: Vec<(String, String)> = report.lost().into_iter().map(|one| (one.event, one.state)).collect();
    assert_eq!(lost, [("submit".to_owned(), "draft".to_owned())], "by somebody else");
}

/// As a release that took `after` across groups played it.
#[cfg(feature = "planted")]
#[test]
fn actions_that_are_dropped_are_found() {
    use flowline_core::definition::read_stored;
    use flowline_core::planted::{Bug, plant};

    let text = r#"{"machine": "order", "events": ["pay"],
        "states": {"cart": {"on": {"pay": {"to": "paid", "actions": ["mail"]}}}, "paid": {"final": true, "entry": ["charge"]}},
        "actions": {"mail": {"function": "f", "after": ["charge"]}, "charge": {"function": "f"}}}"#;
    let definition = read_stored("order.json", text).unwrap();
    let play_all = || {
        let mut stub = Stub::new(definition.clone(), None).unwrap();
        let mut report = SimulationReport::new(definition.clone());
        (0..20).for_each(|seed| report.add(play(&stub.program(seed).unwrap(), Tell::Nothing).trial()));
        report
    };
    plant(Some(Bug::AfterAcrossGroups));
    let broken = play_all();
    plant(None);
    assert!(broken.violations()[0].message.contains("I18"), "{:?}", broken.violations());
    let mended = play_all();
    assert!(mended.violations().is_empty() && mended.never_run().is_empty(), "{:?}", mended.violations());
}
