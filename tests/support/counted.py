"""Of which tests coverage is counted."""

from __future__ import annotations

from typing import Final

UNCOUNTED: Final = (
    "tests/unit/adapters/test_sql.py::test_a_query_reads_no_file_writes_none_loads_nothing_and_changes_no_setting",
    "tests/integration/analysis/test_between.py",
    "tests/integration/analysis/test_bindings.py",
    "tests/unit/analysis/test_reach.py",
    "tests/integration/analysis/test_second_simulation.py",
    "tests/search/chaos/",
    "tests/integration/cli/test_bad_documents.py",
    "tests/integration/cli/test_broken_settings.py",
    "tests/integration/cli/test_endless_files.py",
    "tests/integration/cli/test_foreign_text.py",
    "tests/integration/cli/test_keep.py::test_a_kept_machine_is_advised_on_taken_over_and_paid_for_once",
    "tests/integration/cli/test_readers_that_leave.py",
    "tests/integration/cli/test_real_machines.py::test_a_hang_past_the_phases_limit_is_ended_by_the_agent",
    "tests/integration/cli/test_real_machines.py::test_a_killed_process_on_the_machine_ends_the_run_with_a_diagnosis",
    "tests/integration/cli/test_real_machines.py::test_a_launch_measures_fetches_and_leaves_nothing",
    "tests/integration/cli/test_real_machines.py::test_a_payload_that_is_not_what_it_should_be_stops_the_machine",
    "tests/integration/cli/test_real_machines.py::test_a_preempted_run_goes_on_on_another_machine_and_measures_nothing_twice",
    "tests/integration/cli/test_refusals.py::test_a_cap_that_is_too_small_is_refused_with_exit_3_before_anything_is_asked_for",
    "tests/integration/cli/test_screen.py::test_the_help_of_each_command_has_plain_words_and_an_example_that_is_understood",
    "tests/integration/cli/test_start_up.py",
    "tests/integration/cli/test_widths.py::test_at_80_columns_each_number_and_name_is_whole_and_no_line_is_longer",
    "tests/integration/cli/test_widths.py::test_in_a_pipe_nothing_is_cut_or_wrapped_and_tables_are_cells_between_tabs",
    "tests/integration/contract/test_cloud.py",
    "tests/unit/contract/test_ledger.py",
    "tests/unit/core/test_foreign.py",
    "tests/integration/documents/test_commands.py::test_every_command_that_a_page_or_a_message_names_is_understood",
    "tests/integration/embedded/test_google_clients.py",
    "tests/unit/embedded/test_trespass.py",
    "tests/unit/fleet/test_batch_gate.py::test_a_check_that_gets_no_machine_does_not_pass",
    "tests/integration/fleet/test_batch_story.py",
    "tests/integration/fleet/test_batch_task.py",
    "tests/integration/fleet/test_follow.py",
    "tests/integration/fleet/test_runs.py::test_a_configuration_that_fails_on_three_machines_is_given_up_and_the_others_go_on",
    "tests/integration/fleet/test_runs.py::test_every_child_is_one_run_measured_once_and_settled",
    "tests/integration/fleet/test_runs.py::test_what_failed_on_a_host_is_tried_on_others_and_given_up_after_three_hosts",
    "tests/unit/fleet/test_store.py",
    "tests/integration/report/test_browser.py::test_it_opens_from_disk_without_a_complaint_or_a_request",
    "tests/integration/report/test_drawn.py",
    "tests/unit/report/test_figures.py",
    "tests/integration/report/test_published.py",
    "tests/unit/report/test_report.py",
    "tests/unit/report/test_report_formats.py",
    "tests/integration/site/test_browser.py",
    "tests/unit/site/test_site.py::test_every_run_has_a_line_in_the_index_and_a_page",
    "tests/unit/site/test_site.py::test_no_link_is_broken_and_no_page_asks_for_anything",
    "tests/unit/site/test_site.py::test_what_a_machine_or_a_user_wrote_is_text_on_every_page",
    "tests/integration/startup/test_bootstrap.py",
    "tests/integration/startup/test_bootstrap_deletion.py",
    "tests/integration/startup/test_bootstrap_metadata.py",
    "tests/integration/startup/test_bootstrap_payload.py",
    "tests/integration/startup/test_bootstrap_python.py",
    "tests/integration/startup/test_bootstrap_stops.py",
    "tests/integration/stories/test_aftermath.py",
    "tests/integration/stories/test_alerts.py::test_a_threshold_is_told_whoever_settles_the_run",
    "tests/integration/stories/test_claims.py",
    "tests/integration/stories/test_forged_words.py",
    "tests/integration/stories/test_half_begun.py",
    "tests/integration/stories/test_half_built.py",
    "tests/integration/stories/test_half_taken.py",
    "tests/integration/stories/test_holds.py",
    "tests/integration/stories/test_images.py",
    "tests/integration/stories/test_interrupted.py",
    "tests/integration/stories/test_kept_machines.py",
    "tests/integration/stories/test_late_machines.py",
    "tests/integration/stories/test_lost_ledger.py",
    "tests/integration/stories/test_placement.py::test_another_gpu_is_taken_when_the_first_cannot_be_had",
    "tests/integration/stories/test_placement.py::test_where_no_spot_machine_is_left_one_on_demand_is_asked_for",
    "tests/integration/stories/test_placement.py::test_with_stock_out_in_five_zones_the_sixth_is_found_with_six_requests",
    "tests/integration/stories/test_recovery.py",
    "tests/integration/stories/test_resumption.py",
    "tests/integration/stories/test_runs.py",
    "tests/integration/stories/test_wrong_clocks.py",
    "tests/unit/test_architecture.py",
    "tests/unit/test_documents.py",
    "tests/integration/test_packaging.py",
    "tests/unit/test_patience.py",
    "tests/unit/test_plurals.py",
    "tests/unit/test_tracing.py::test_what_is_not_counted_is_not_traced",
)
"""Whole stories, laws of thousands of runs or rows, what reads the code and does not run it, and what takes seconds and
treads where others do. The parts that they tread on are tested by themselves, and to trace them takes two thirds as
long again as to play them."""
ELSEWHERE: Final = "tests/kernels/"
"""Tests of what is not counted anyway, but for these, which use what is."""
COUNTED: Final = (
    "tests/kernels/test_columns.py",
    "tests/kernels/test_examples.py",
    "tests/kernels/test_kernelbench.py",
)


def is_counted(test: str) -> bool:
    """Whether coverage of a test is counted, by its id."""
    return not test.startswith(UNCOUNTED) and (test.startswith(COUNTED) or not test.startswith(ELSEWHERE))
