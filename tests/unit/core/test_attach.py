"""The command that opens a terminal: what it is for a host, and for a rented machine."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.attach import through_iap, to_host
from orchestrator.core.hosts import HostTarget


def test_a_host_is_reached_as_it_was_named() -> None:
    assert to_host(HostTarget("ada", "box", 2222)) == ("ssh", "-t", "-p", "2222", "--", "ada@box")
    assert to_host(HostTarget("", "alias", None)) == ("ssh", "-t", "--", "alias")


def test_a_rented_machine_is_reached_through_a_tunnel_by_name_zone_and_project() -> None:
    assert through_iap("vm-1", "us-central1-a", "p") == (
        "gcloud", "compute", "ssh", "vm-1", "--zone", "us-central1-a", "--project", "p", "--tunnel-through-iap",
    )  # fmt: skip


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1, max_size=4))
def test_a_command_arrives_word_for_word(command: list[str]) -> None:
    assert shlex.split(to_host(HostTarget("", "box", None), command)[-1]) == command
    *_, flag, word = through_iap("vm", "z", "p", command)
    assert (flag, shlex.split(word)) == ("--command", command)
