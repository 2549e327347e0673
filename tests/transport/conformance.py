"""The laws that every transport keeps, so that actors proved on one may run on all.

Each law is a coroutine over a :class:`World` of the transport; its name is the law. Laws for one-sided transports, and
those that need a path to be severed, bind only transports that can do it.
"""

from __future__ import annotations

from typing import Final

from tests.transport import (
    laws_of_endings,
    laws_of_frames,
    laws_of_posts,
    laws_of_probes,
    laws_of_severed,
    laws_of_writes,
)
from tests.transport.harness import Check, Law


def _laws(
    *checks: Check, one_sided: bool = False, severable: bool = False, flushes: bool = False, posts: bool = False
) -> list[Law]:
    return [Law(check, one_sided, severable, flushes, posts) for check in checks]


LAWS: Final = tuple(
    _laws(
        laws_of_frames.both_ends_hear_who_is_at_the_other,
        laws_of_frames.established_never_comes_before_dial_returned,
        laws_of_frames.frames_arrive_in_the_order_they_were_sent,
        laws_of_frames.payloads_of_every_size_arrive_whole_both_ways,
        laws_of_frames.a_control_frame_keeps_its_header_and_body,
        laws_of_frames.a_small_chunk_comes_whole_without_asking_for_a_destination,
        laws_of_frames.a_large_chunk_asks_once_where_to_and_lands_there,
        laws_of_frames.relayed_frames_of_every_size_come_as_chunks_do_on_connections_of_both_purposes,
        laws_of_frames.a_relayed_frame_is_withdrawn_with_no_operation,
        laws_of_frames.after_the_last_event_of_a_turn_the_batch_ends,
        laws_of_frames.a_payload_that_fails_its_checksum_costs_only_that_chunk,
        laws_of_frames.a_payload_without_checksum_is_taken_as_it_comes,
        laws_of_frames.a_header_that_fails_its_check_ends_the_connection,
        laws_of_endings.withdrawn_frames_do_not_arrive_and_the_others_do,
        laws_of_endings.memory_of_frames_that_were_withdrawn_in_full_is_not_held,
        laws_of_endings.what_withdraw_cannot_give_back_abort_does,
        laws_of_endings.a_frame_that_loses_its_destination_is_thrown_away_and_the_stream_goes_on,
        laws_of_endings.discarding_when_nothing_is_being_received_does_nothing,
        laws_of_endings.an_aborted_connection_holds_no_view_and_the_peer_hears_of_it,
        laws_of_endings.a_receiver_that_aborts_gets_its_destination_back_untouched_from_then_on,
        laws_of_endings.a_connection_may_be_aborted_from_within_any_event,
        laws_of_endings.nobody_listening_means_refused,
        laws_of_endings.the_endpoint_that_was_reserved_is_the_one_that_is_listened_at,
        laws_of_endings.somebody_else_listening_means_not_admitted,
        laws_of_endings.a_dial_that_is_aborted_at_once_is_never_heard_of_again,
        laws_of_endings.many_connections_keep_their_frames_apart,
        laws_of_endings.an_idle_connection_accuses_nobody,
        laws_of_endings.an_account_tells_what_went_out_what_was_answered_and_how_long_that_took,
        laws_of_endings.what_was_not_taken_over_counts_as_unsent,
        laws_of_endings.a_closed_device_ends_its_connections_and_refuses_new_ones,
        laws_of_endings.registered_memory_is_given_back_as_it_was,
        laws_of_probes.a_kernel_answers_a_knock_once_and_no_receiver_hears_of_it,
        laws_of_probes.where_nobody_listens_a_knock_is_refused,
        laws_of_probes.an_aborted_knock_is_never_answered,
        laws_of_probes.many_knocks_at_once_are_answered_each,
        laws_of_probes.a_device_that_closes_hears_no_answer_any_more,
    )
    + _laws(
        laws_of_severed.a_dial_over_a_dead_path_ends_as_unreachable,
        laws_of_severed.a_dead_path_shows_as_bytes_in_flight_and_growing_silence,
        laws_of_severed.a_path_that_comes_back_in_time_has_lost_nothing,
        laws_of_severed.abort_gives_memory_back_on_a_dead_path_too,
        laws_of_probes.on_a_dead_path_a_knock_ends_as_silence,
        laws_of_probes.a_path_that_dies_under_a_knock_swallows_its_answer,
        severable=True,
    )
    + _laws(
        laws_of_writes.a_write_lands_in_registered_memory_and_is_told_in_order,
        laws_of_writes.several_completions_come_in_one_batch,
        laws_of_writes.a_write_that_fails_its_checksum_is_told_as_spoiled,
        laws_of_writes.memory_of_a_write_is_held_until_it_has_landed,
        laws_of_writes.a_write_to_deregistered_memory_ends_the_connection_at_both_ends,
        laws_of_writes.a_write_beyond_its_region_ends_the_connection,
        laws_of_writes.once_the_target_has_aborted_no_byte_is_written_to_its_memory,
        laws_of_writes.once_the_source_has_aborted_its_memory_is_not_read,
        one_sided=True,
    )
    + _laws(
        laws_of_posts.what_was_posted_is_found_before_the_loop_looks_and_comes_no_other_way,
        laws_of_posts.what_nobody_takes_comes_like_any_other_in_its_place,
        laws_of_posts.the_first_is_taken_and_the_loop_reads_the_second,
        laws_of_posts.nothing_is_posted_before_what_waits,
        laws_of_posts.a_frame_of_which_a_part_is_missing_is_not_found,
        laws_of_posts.nothing_is_found_or_posted_once_the_connection_has_ended,
        laws_of_posts.what_was_posted_and_not_read_is_given_out_once_to_whom_it_belongs,
        laws_of_posts.what_was_posted_and_not_read_is_left_when_the_connection_has_ended,
        laws_of_posts.what_was_posted_and_is_refused_when_it_has_landed_is_left,
        laws_of_posts.what_was_posted_and_is_refused_in_the_ring_is_left,
        posts=True,
    )
    + _laws(laws_of_writes.a_dead_path_flushes_what_was_in_flight, severable=True, flushes=True)
)
