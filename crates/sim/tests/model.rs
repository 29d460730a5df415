//! Generator, model and `decide` against each other: random programs are played on the bare core, one instance and no
//! store, and the model must agree with every log.
//!
//! The player here is as simple as can be. Attempts run side by side in virtual time, some are lost with their lease;
//! the simulator proper adds the engine, stores and faults.

use crate::player::{self, Player};
use flowline_core::definition::{Format, read};
use flowline_sim::model::{ObservedRun, StepFate, compare, predict};
use flowline_sim::program::{SimProgram, Stub};

/// Programs that are played; another number can be given in the environment.
const SEEDS: u64 = 500;

fn seeds() -> u64 {
    std::env::var("FLOWLINE_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// The flows among the random programs: the player here knows no events with ids and no timers of states, which the simulator
/// does.
fn flows(seeds: u64) -> impl Iterator<Item = SimProgram> {
    (0..seeds).map(SimProgram::random).filter(|program| !program.is_of_machine())
}

/// Plays every run of a program and compares each with the model.
fn agree(program: &SimProgram, losing: u32) -> Result<(), String> {
    let mut played: Vec<Option<Player>> = Vec::new();
    for run in 0..program.script.runs() {
        let parent = player::parent_of(program, run).and_then(|parent| played.get(parent)?.as_ref());
        let player = Player::play(program, run, parent, losing);
        if let Some(player) = &player {
            let seen = ObservedRun {
                log: &player.log,
                receipts: &[],
                parent: parent.map(|p| &*p.log),
                at_rest: true,
            };
            compare(program, run, seen).map_err(|problem| {
                let flow = &player.plan.definition;
                let flow = serde_json::to_string_pretty(flow).unwrap();
                format!("seed {}, run {run}: {problem}\n{flow}\n{}", program.seed, player.transcript())
            })?;
        }
        played.push(player);
    }
    Ok(())
}

#[test]
fn the_core_does_what_the_model_says() {
    for program in flows(seeds()) {
        agree(&program, 0).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

#[test]
fn lost_leases_change_nothing_that_the_model_says() {
    for program in flows(seeds()) {
        agree(&program, 15).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

#[test]
fn leases_lost_beyond_their_cap_are_taken_from_the_log() {
    for program in flows(seeds() / 3) {
        agree(&program, 80).unwrap_or_else(|problem| panic!("{problem}"));
    }
}

const FLOW: &str = r#"
flow: order
input: { type: object, required: [total], properties: { total: { type: integer, minimum: 1 } } }
accepts: { approval.given: { type: object, required: [by] } }
output: results.ship.tracking
steps:
  charge: { command: [a], emits: { charged: { type: object, required: [cents] } }, retry: { attempts: 3, only: [busy] } }
  gift: { command: [a], if: input.total > 500, returns: wrapped, on_failure: continue }
  ship: { command: [a], subscribes: [charged, { any: [approval.given, wrapped] }] }
  tell: { command: [a], subscribes: ["step:ship"], on_failure: continue }
"#;

#[test]
fn a_users_flow_does_what_the_model_says() {
    let read =
        read("order.yaml", FLOW, Format::Yaml).unwrap_or_else(|wrong| panic!("{}", wrong.render(false)));
    let mut stub = Stub::new(read.definition, None).unwrap();
    let mut ends = std::collections::BTreeMap::new();
    for seed in 0..400 {
        let program = stub.program(seed).unwrap();
        agree(&program, 20).unwrap_or_else(|problem| panic!("{problem}"));
        let player = Player::play(&program, 0, None, 0).unwrap();
        *ends.entry(player.state.status()).or_insert(0) += 1;
    }
    assert!(ends.len() >= 3 && ends.values().all(|n| *n > 10), "completed, failed and waiting: {ends:?}");
}

/// What the model makes of a log with one thing changed: it must notice.
#[test]
fn a_log_that_was_tampered_with_is_noticed() {
    let (mut noticed, mut tampered) = (0, 0);
    for program in flows(300) {
        let Some(player) = Player::play(&program, 0, None, 0) else { continue };
        for at in 0..player.log.len() {
            let mut log = player.log.clone();
            let event = log.remove(at);
            let matters = event.kind.as_str().starts_with("step.") && event.kind.as_str() != "step.started";
            if !matters {
                continue;
            }
            tampered += 1;
            noticed += usize::from(
                compare(&program, 0, ObservedRun { log: &log, receipts: &[], parent: None, at_rest: true })
                    .is_err(),
            );
        }
    }
    assert!(noticed * 10 >= tampered * 9, "{noticed} of {tampered} noticed");
}

#[test]
fn the_prediction_leaves_little_to_chance() {
    let (mut certain, mut all) = (0, 0);
    for program in flows(500) {
        let Some(player) = Player::play(&program, 0, None, 0) else { continue };
        let observed = flowline_sim::model::Observed::of(&player.plan.definition, &player.log).unwrap();
        let prediction = predict(&program, 0, &observed);
        all += prediction.fates.len();
        certain += prediction.fates.values().filter(|fates| fates.len() == 1).count();
        assert!(prediction.fates.values().all(|fates| !fates.contains(&StepFate::Open)));
    }
    assert!(certain * 4 >= all * 3, "{certain} of {all} fates are certain");
}
