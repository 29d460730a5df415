//! Many instances on one Redis or Postgres: real processes, real servers, real faults, then the checker.
//!
//! Numbers are small enough for every run of the tests; `FLOWLINE_SOAK=1` takes the large ones. Servers that a test breaks
//! are its own; the others are those that `cargo xtask test` starts.
#![cfg(unix)]

mod criteria;
mod faults;
mod fleet;
mod proxy;

/// Each claim once on each kind of server.
macro_rules! on_both {
    ($($part:ident: $($claim:ident)*;)*) => {
        mod redis { $($(#[test] fn $claim() { crate::instances::$part::$claim(crate::kit::server::Kind::Redis); })*)* }
        mod postgres { $($(#[test] fn $claim() { crate::instances::$part::$claim(crate::kit::server::Kind::Postgres); })*)* }
    };
}

on_both! {
    faults:
        three_instances_under_kills_pauses_restarts_and_cuts_lose_and_double_nothing
        an_instance_that_is_cut_off_comes_back_while_others_go_on
        a_server_that_is_away_for_longer_than_the_lease_is_waited_for
        a_half_open_connection_costs_an_instance_only_its_leases;
    criteria:
        no_step_is_enqueued_twice_by_three_instances
        the_terminal_event_of_a_run_is_published_once
        emits_never_race_with_what_they_trigger
        sharing_a_store_adds_less_than_100_ms_to_a_run
        ten_instances_take_a_hundred_flows_at_once
        fewer_than_one_commit_in_twenty_meets_another
        a_crashed_instance_is_made_up_for_by_another
        an_expired_lease_does_not_corrupt_its_run
        a_lost_connection_is_told_and_outlived
        one_instance_does_on_a_server_what_it_does_on_a_file
        only_the_url_says_whether_a_store_is_shared
        every_instance_gets_its_share_of_a_backlog;
}
