//! The contract as tests: one case per claim, the same for every store.
//!
//! An adapter's `tests/conformance.rs` enables the feature `conformance` of this crate, says how a fresh store is opened,
//! and calls the macro; every case becomes a test of its own:
//!
//! ```ignore
//! async fn open() -> Fixture { … }
//! flowline_store::conformance!(open);
//! ```
//!
//! A case never asks which store runs and never looks at the wall clock: [`Fixture::pass`] lets the store's time go by.
//! [`differential`] adds seeded random sequences of calls, compared answer by answer with the in-memory store.

mod busy;
pub mod claims;
pub mod commit;
pub mod definitions;
mod differ;
pub mod documents;
pub mod events;
pub mod feed;
mod fixture;
pub mod given;
mod largest;
pub mod leases;
pub mod locks;
mod ops;
pub mod queues;
pub mod receipts;
pub mod repair;
pub mod reports;
pub mod retention;
pub mod runs;
pub mod state;
pub mod transfer;

pub use busy::{BoxError, BusyRate, keep_busy};
pub use differ::{Mismatch, compare, differential};
pub use fixture::Fixture;
pub use largest::payloads_of_the_largest_size_are_kept;

/// One `#[tokio::test]` per case of the suite. `$open` names an async function without arguments that opens a fresh,
/// empty store as a [`Fixture`].
#[macro_export]
macro_rules! conformance {
    ($open:ident) => {
        $crate::conformance_tests! { $open
            claims: [
                a_claim_tells_all_of_its_lease
                urgent_jobs_go_first_then_those_due_first_then_those_added_first
                a_job_is_not_claimed_before_it_is_due
                next_due_looks_at_served_lanes_alone
                a_held_job_is_not_claimed
                a_released_hold_keeps_its_place
                a_paused_queue_is_passed_over_until_it_is_open
                a_queue_is_paused_for_its_tenant_alone
                a_timer_is_not_claimed
                only_what_the_caller_can_run_is_claimed
                a_claim_of_one_tenant_sees_no_other
                a_claim_takes_no_more_than_it_has_tokens
                a_claim_takes_no_more_of_a_queue_than_is_free
                a_leased_job_is_not_claimed_again_even_after_its_expiry
                racing_claims_never_share_a_job
                a_claim_rotates_over_lanes
                claims_of_one_job_each_rotate_over_lanes
                a_tenant_with_many_jobs_does_not_starve_another
                a_flood_of_one_tenant_leaves_each_other_tenant_its_turn
                a_deep_queue_is_claimed_in_order_to_its_end
            ]
            commit: [
                a_new_run_gets_version_one_and_its_events_from_one
                a_row_tells_what_its_start_said
                a_commit_on_the_right_version_replaces_state_and_index
                a_commit_on_another_version_is_refused
                a_commit_on_a_run_that_is_not_there_is_a_conflict
                a_run_that_exists_is_not_started_again
                an_unknown_definition_is_refused
                a_definition_of_another_tenant_is_unknown
                a_conflict_of_one_run_fails_that_run_alone
                an_empty_batch_is_answered_with_nothing
                a_large_batch_lands_whole_and_is_answered_in_order
                events_of_one_commit_share_one_date_that_never_goes_back
                a_clock_that_goes_back_does_not_take_dates_back
                a_commit_without_events_counts_the_version_up
                started_at_is_the_date_of_the_first_step_started
                a_run_began_when_its_first_attempt_did_however_late_that_is_written
                a_machine_begins_with_its_first_state_and_a_run_that_never_began_counts_from_its_start
                a_terminal_event_says_the_same_duration_as_the_row
                the_terminal_event_dates_the_end_and_the_duration
                a_failure_once_set_stays_until_another_is_given
                counters_move_with_the_commits
                the_state_of_a_machine_is_replaced_and_counted
                a_job_under_a_key_that_is_taken_is_refused
                a_job_added_twice_in_one_commit_is_refused
                a_key_is_free_in_the_commit_that_takes_its_job_away
                a_job_is_listed_as_it_was_added
                drop_leaves_no_job_and_no_lease_of_the_run
                hold_keeps_waiting_jobs_and_timers_back_until_release
                hold_does_not_touch_what_the_same_commit_adds_or_names
                of_racing_commits_on_one_version_one_lands
                of_racing_starts_of_one_run_one_lands
                racing_commits_of_many_runs_all_land
                the_watch_changes_with_a_commit_and_with_an_append
                the_same_run_id_in_two_tenants_is_two_runs
            ]
            definitions: [
                a_definition_comes_back_as_it_was_put
                a_definition_that_is_not_there_is_none
                a_new_hash_becomes_the_latest_and_an_old_one_cannot_turn_it_back
                a_definition_seen_before_can_be_made_the_latest_again
                a_retired_flow_has_no_latest_until_one_is_made_it
                what_is_not_a_definition_of_the_flow_cannot_be_made_its_latest
                the_origin_is_replaced_on_every_call_and_nothing_else
                one_hash_in_two_tenants_is_two_definitions
                definitions_are_listed_by_flow_and_newest_first
            ]
            documents: [
                a_document_comes_back_as_it_was_put
                a_document_that_is_not_there_is_none
                a_document_put_again_takes_the_place_of_the_one_before
                a_deleted_document_is_gone
                documents_are_listed_by_the_bytes_of_their_ids
                pages_of_documents_join_without_gap_or_repeat
                a_page_of_documents_is_bounded
                a_document_is_gone_when_its_time_is_over
                a_document_put_again_lives_by_its_new_time
                a_time_to_live_beyond_all_measure_is_kept
                pages_pass_over_any_number_of_documents_past_their_time
                strange_names_are_kept_apart
                a_name_that_no_store_can_keep_is_refused
                a_body_is_as_large_as_a_payload_and_no_larger
                collections_do_not_see_each_other
                of_racing_puts_of_one_document_one_stays_whole
                a_document_is_created_where_none_is_live
                of_racing_creators_of_one_document_one_writes
                retention_removes_documents_past_their_time_and_no_other
            ]
            events: [
                seq_is_contiguous_across_commits_and_appends
                appended_lines_are_events_like_others
                append_changes_neither_version_nor_state
                append_repeated_with_the_same_from_line_writes_once
                a_page_of_events_is_bounded_by_its_bytes
                append_writes_the_lines_that_are_not_there_yet
                append_beyond_the_lines_that_are_there_is_refused
                a_stale_token_appends_not_even_a_log_line
                appends_of_one_batch_are_answered_each
                racing_appends_and_commits_leave_no_gap
                strange_text_in_payloads_comes_back_byte_for_byte
                every_type_of_event_is_stored
                a_page_holds_a_thousand_events_at_most
                events_are_filtered_by_type_step_and_attempt
                a_count_of_events_honours_the_filters_and_not_the_page
                a_run_that_is_not_there_has_no_events
                payloads_are_found_by_their_slots
                what_a_machine_took_in_and_its_contexts_are_found_again
                the_payload_of_flow_start_is_the_input
            ]
            feed: [
                the_feed_gives_every_event_once_in_order_per_run
                a_cursor_goes_on_where_it_was_given
                a_page_within_a_commit_goes_on_within_it
                every_event_has_a_cursor_that_goes_on_right_after_it
                from_now_gives_only_the_end
                from_now_on_an_empty_store_misses_nothing
                the_feed_is_filtered_by_tenant_flow_and_type
                the_cursor_moves_past_what_the_filter_leaves_out
                a_feed_cursor_that_is_none_is_refused
                a_feed_cursor_beyond_the_end_is_refused
                a_reader_beside_racing_writers_misses_nothing
            ]
            leases: [
                finish_takes_the_job_away
                a_wrong_token_commits_nothing
                a_wrong_attempt_commits_nothing
                tokens_are_compared_in_all_their_bits
                an_unleased_job_cannot_be_finished
                one_stale_lease_among_good_ones_refuses_the_commit
                the_whole_of_an_attempt_is_committed_only_if_no_line_of_it_is_in_the_log
                a_lease_is_given_up_only_with_the_lines_that_are_in_the_log
                expired_lease_cannot_complete_job
                a_lease_that_ran_out_completes_until_it_is_given_up
                a_lease_that_has_not_run_out_cannot_be_given_up
                keep_leaves_the_lease_and_counts_its_lines
                due_takes_a_timer_that_is_due_and_no_other
                a_timer_fires_once
                due_does_not_take_a_leased_job
                unleased_takes_what_waits_or_is_held_and_nothing_leased
                extend_moves_the_expiry
                a_lease_that_ran_out_can_be_extended_until_it_is_given_up
                extend_tells_each_lease_apart
                a_released_lease_is_swept_at_once_and_not_as_lost
                a_released_lease_is_not_extended
                a_lease_is_released_by_its_token_alone
                a_granted_handoff_is_a_lease
                handoff_on_a_paused_queue_is_not_granted
                handoff_of_a_held_or_future_job_or_a_timer_is_not_granted
                a_lease_by_handoff_runs_out_too
                sweep_finds_what_ran_out_and_changes_nothing
                sweep_finds_due_timers_that_are_not_held
                sweep_gives_at_most_its_limit_of_each_the_longest_due_first
                sweep_tells_when_something_will_be_due_next
                of_two_that_give_up_one_lease_one_lands
                a_lease_of_an_ended_run_writes_nothing
                a_lease_of_another_tenant_writes_nothing
            ]
            locks: [
                a_free_lock_is_granted_and_listed
                a_held_lock_is_refused_and_names_its_holder
                a_holder_that_asks_again_is_granted_again
                every_new_grant_is_later_than_those_before
                a_released_lock_is_free_at_once
                a_lock_is_not_released_by_another
                an_extended_lock_lives_on
                a_lock_is_not_extended_by_another
                a_lock_whose_time_is_over_is_free
                of_those_that_race_for_a_lock_one_gets_it
                tenants_and_names_are_apart
                retention_leaves_held_locks_alone
            ]
            queues: [
                depths_are_counted_by_lane
                a_lane_without_jobs_is_not_listed
                a_delayed_job_becomes_ready_with_time
                a_paused_queue_says_so_in_every_lane
                a_paused_queue_without_jobs_is_listed
                tenants_do_not_see_each_others_queues
                a_leased_job_on_a_paused_queue_runs_on
            ]
            receipts: [
                a_receipt_opens_with_its_commit
                a_receipt_that_is_not_there_is_none
                a_receipt_goes_on_with_the_commits_that_say_so
                a_receipt_finished_at_once_has_all_its_dates
                what_a_change_does_not_say_stays
                a_refused_commit_changes_no_receipt
                a_change_of_a_receipt_that_is_not_there_is_passed_over
                receipts_are_listed_newest_first
                pages_of_receipts_join_without_gap_or_repeat
                a_page_of_receipts_is_bounded
                receipts_are_filtered_by_run_status_and_worker
                the_receipt_of_an_event_is_filtered_like_others_and_needs_its_run
                tenants_do_not_see_each_others_receipts
                strange_texts_in_receipts_come_back
                receipts_stay_with_a_trimmed_run_and_go_with_its_row
                a_receipt_cursor_that_is_none_is_refused
            ]
            repair: [
                a_repair_on_another_version_changes_nothing
                a_mended_row_is_what_the_repair_says
                a_row_that_lines_were_added_to_since_it_was_looked_at_is_left_alone
                missing_events_are_added_at_the_end
                missing_jobs_are_added_and_others_go
                a_mend_that_adds_a_job_that_is_there_is_refused
                counting_again_gives_the_same_where_nothing_is_wrong
                a_fresh_store_is_healthy_and_says_what_it_survives
                the_stores_time_does_not_stand_still
            ]
            reports: [
                a_trimmed_run_keeps_a_digest_of_each_report
                a_run_whose_log_is_whole_has_no_digests
                a_log_of_many_pages_is_digested_whole
                digests_go_with_their_run
            ]
            retention: [
                a_run_that_has_not_ended_is_never_touched
                a_run_that_ended_lately_is_kept
                trimmed_events_leave_a_marked_row
                the_feed_goes_on_past_trimmed_events
                a_removed_run_leaves_nothing_behind
                a_deleted_run_leaves_nothing_behind_and_its_id_is_free
                only_an_ended_run_of_the_tenant_is_deleted
                jobs_left_by_an_ended_run_go_with_it
                every_ended_status_is_retained_and_no_other
                at_most_limit_runs_go_at_once_those_that_ended_first
                retention_keeps_counters_true
                what_a_definition_says_comes_before_the_policy_be_it_shorter_or_longer
                what_a_definition_leaves_out_is_as_the_policy_says
                a_run_goes_in_two_steps_by_its_own_times
                the_limit_holds_for_all_retentions_together_those_that_ended_first_go_first
                a_run_with_times_of_its_own_ends_by_a_step_and_is_retained
                a_run_with_times_of_its_own_is_deleted_and_mended_like_any_other
            ]
            runs: [
                runs_are_found_by_time_also_where_the_clock_was_set_back
                runs_are_listed_newest_first
                an_empty_store_lists_nothing
                pages_join_without_gap_or_repeat
                a_full_last_page_has_no_next
                a_page_of_runs_is_bounded
                runs_are_filtered_by_flow_and_status
                runs_are_filtered_by_state_within_their_flow
                a_state_without_its_flow_is_refused
                runs_are_filtered_by_label
                labels_narrow_other_filters_and_page
                runs_are_filtered_by_the_date_of_their_creation
                a_total_is_given_only_where_it_is_wanted
                tenants_do_not_see_each_others_runs
                a_cursor_that_is_none_is_refused
                totals_are_exact_to_ten_thousand_where_no_counter_has_them
            ]
            state: [
                a_value_is_set_replaced_and_deleted
                values_are_listed_by_key
                changes_of_one_append_apply_in_order
                scopes_are_apart_and_reach_as_far_as_they_say
                tenants_do_not_see_each_others_state
                named_scopes_are_listed_while_they_hold_a_value
                values_are_listed_page_by_page
                a_change_from_outside_is_seen_by_runs_and_the_other_way_round
                the_last_change_counts_whoever_made_it
                a_change_from_outside_is_gone_when_its_time_is_over
                the_state_of_a_run_is_not_changed_from_outside
                a_value_is_gone_when_its_time_is_over
                a_value_set_again_lives_by_its_new_time
                a_stale_lease_changes_no_state
                a_line_sent_again_does_not_change_state_again
                clear_state_removes_the_runs_own_alone
                a_page_of_values_is_bounded_by_its_bytes
            ]
            transfer: [
                what_is_restored_reads_as_in_the_store_it_comes_from
                runs_restored_one_after_the_other_are_listed_the_last_one_first
                a_run_in_flight_goes_on_where_it_was
                a_restored_lease_is_nobodys_and_runs_out
                a_restored_run_ends_and_is_retained_like_any_other
                restored_runs_are_kept_for_the_times_of_their_own
                what_is_the_latest_and_what_is_retired_is_carried
                a_log_is_restored_in_parts
                a_run_that_is_there_is_not_restored_over
                a_run_without_its_definition_is_not_restored
                values_are_told_with_their_end
                documents_are_carried_with_their_end
                a_store_with_anything_in_it_is_not_filled
                a_filling_that_was_broken_off_begins_anew
            ]
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($open:ident $($theme:ident: [$($case:ident)*])*) => {
        $(mod $theme {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::conformance::$theme::$case(super::$open().await).await;
            })*
        })*
    };
}

#[cfg(test)]
mod tests {
    /// A case that the macro does not list would never run.
    #[test]
    fn every_case_is_in_the_list() {
        let listed = include_str!("mod.rs");
        let themes = [
            include_str!("claims.rs"),
            include_str!("commit.rs"),
            include_str!("definitions.rs"),
            include_str!("documents.rs"),
            include_str!("events.rs"),
            include_str!("feed.rs"),
            include_str!("leases.rs"),
            include_str!("locks.rs"),
            include_str!("queues.rs"),
            include_str!("receipts.rs"),
            include_str!("repair.rs"),
            include_str!("reports.rs"),
            include_str!("retention.rs"),
            include_str!("runs.rs"),
            include_str!("state.rs"),
            include_str!("transfer.rs"),
        ];
        for line in themes.iter().flat_map(|theme| theme.lines()) {
            let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
            let name = rest.split('(').next().unwrap_or_default();
            assert!(listed.lines().any(|line| line.trim() == name), "{name} is not in the macro's list");
        }
    }
}
