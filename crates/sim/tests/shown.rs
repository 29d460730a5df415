//! A user's flow in the simulator: whatever it declares, the worlds come to rest and keep every promise.

use flowline_core::EventType;
use flowline_core::definition::{Format, read};
use flowline_sim::program::Stub;
use flowline_sim::report::{Ending, Report};
use flowline_sim::trial::{Tell, play};

fn report(text: &str, seeds: u64) -> Report {
    let read =
        read("flow.yaml", text, Format::Yaml).unwrap_or_else(|wrong| panic!("{}", wrong.render(false)));
    let mut stub = Stub::new(read.definition.clone(), None).unwrap();
    let mut report = Report::new(read.definition);
    for seed in 0..seeds {
        let program = stub.program(seed).unwrap();
        report.add(play(&program, Tell::Nothing).trial());
    }
    assert!(report.violations().is_empty(), "{:?}", report.violations());
    report
}

fn seeds_of(report: &Report, ending: Ending) -> u64 {
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
    assert_eq!(seeds_of(&report, Ending::Unfinished) + seeds_of(&report, Ending::Waiting), 0);
    let out_of_time = report.failures().into_iter().find(|failure| failure.step.is_none()).unwrap();
    assert_eq!(out_of_time.path, ["start", "the run takes longer than 30d", "the run fails"]);
}

#[test]
fn many_steps_side_by_side_come_to_an_end() {
    let steps: String =
        (0..60).map(|at| format!("  s{at}: {{ command: [x], retry: {{ attempts: 5 }} }}\n")).collect();
    let report = report(&format!("flow: wide\nsteps:\n{steps}"), 20);
    assert_eq!(seeds_of(&report, Ending::Unfinished), 0);
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
    assert!(seeds_of(&report, Ending::Completed) > 0);
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
