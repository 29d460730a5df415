//! Machines on every store, as the distributed workflow spec would have them tested: real processes on SQLite, Redis and
//! Postgres, killed and stopped, one claim each.
//!
//! Numbers are small enough for every run of the tests; `FLOWLINE_SOAK=1` takes the large ones.
#![cfg(unix)]

mod locks;
mod many;
mod meeting;
mod reconciling;
mod site;
mod taking;
mod working;

/// Each claim once on each kind of store.
macro_rules! on_each {
    ($($part:ident: $($claim:ident)*;)*) => {
        mod sqlite { $($(#[test] fn $claim() { crate::machines::$part::$claim(crate::machines::site::Kind::Sqlite); })*)* }
        mod redis { $($(#[test] fn $claim() { crate::machines::$part::$claim(crate::machines::site::Kind::Redis); })*)* }
        mod postgres { $($(#[test] fn $claim() { crate::machines::$part::$claim(crate::machines::site::Kind::Postgres); })*)* }
    };
}

on_each! {
    taking:
        enqueueing_an_event_outlives_the_instance_that_took_it
        validation_is_at_the_door_and_again_at_the_turn
        idempotency_one_key_is_one_event_however_many_send_it
        processing_keeps_the_order_of_events_and_of_their_actions;
    working:
        resuming_after_an_interruption_goes_on_where_it_stopped
        parallel_runs_do_not_wait_for_each_other
        a_worker_that_starts_takes_what_waits
        a_worker_that_is_stopped_finishes_or_gives_back
        errors_are_tried_again_and_then_recorded
        reclaiming_what_a_dead_worker_held
        a_failed_event_is_tried_again_where_it_failed;
    locks:
        a_lock_is_acquired_once
        a_lock_is_released_by_its_holder_alone
        a_lock_is_extended_by_its_holder_alone
        a_contended_lock_has_one_holder_at_a_time
        a_guard_extends_its_lock_until_it_is_lost_or_released
        the_lease_of_an_action_is_extended_while_it_runs;
    reconciling:
        a_damaged_run_is_reported_by_the_next_pass_and_mended_where_that_is_asked_for;
    meeting:
        timers_fire_once_and_on_time_whoever_was_killed_meanwhile
        a_timer_goes_in_the_commit_that_leaves_its_state
        flows_and_machines_send_and_wait_for_each_other;
    many:
        every_accepted_event_is_applied_once_and_in_order_whoever_is_killed;
}
