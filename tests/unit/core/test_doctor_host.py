"""What plain commands on a host mean, and that none of them changes it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchestrator.core.doctor import host
from orchestrator.core.doctor.host import HOST_CHECKS, HostCheck, Ran
from orchestrator.core.doctor.verdicts import Level, Verdict
from orchestrator.core.hosts import Target

BOX = Target("ada", "box", 2222)


def judged(check: HostCheck, replies: Mapping[str, Ran]) -> Verdict:
    """The verdict, where a command with one of these words in it is answered so, and any other is not found."""

    def run(line: str) -> Ran:
        assert not {"sudo", "install", "rm", "kill"} & set(line.split()), "it only looks"
        return next((ran for word, ran in replies.items() if word in line), Ran(127, "", "not found"))

    return check(run, BOX)


TOOLS = "a shell answers\n/usr/bin/bash\n/usr/bin/curl\n/usr/bin/tar\n/usr/bin/setsid\n"
NAMED = "NVIDIA L4, 23034 MiB\n"


@pytest.mark.parametrize(
    ("check", "replies", "level", "says"),
    [
        (host.reachable, {"command -v": Ran(0, TOOLS)}, Level.OK, "answers"),
        (host.reachable, {"command -v": Ran(255, "", "Permission denied\n")}, Level.FAIL, "Permission denied"),
        (host.reachable, {"command -v": Ran(0, "Fri Nov 27 2026\n")}, Level.FAIL, "one command only"),
        (host.reachable, {"command -v": Ran(255)}, Level.FAIL, "exit 255"),
        (
            host.reachable,
            {"command -v": Ran(0, "a shell answers\n/usr/bin/bash\n/usr/bin/tar")},
            Level.FAIL,
            "no curl, setsid",
        ),
        (host.gpu, {"name,": Ran(0, NAMED), "apps": Ran(0, "")}, Level.OK, "NVIDIA L4"),
        (host.gpu, {"name,": Ran(0, NAMED * 2), "apps": Ran(1)}, Level.OK, "and 1 more"),
        (host.gpu, {"name,": Ran(0, NAMED), "apps": Ran(0, "17\n[N/A]\n")}, Level.WARN, "in use by 17"),
        (host.gpu, {"lspci": Ran(0, "3D controller: NVIDIA")}, Level.FAIL, "no driver answers"),
        (host.gpu, {"lspci": Ran(0, "")}, Level.WARN, "no NVIDIA GPU"),
        (host.driver, {"driver_version": Ran(0, "580.95.05\n580.95.05\n")}, Level.OK, "driver 580.95.05"),
        (host.driver, {"driver_version": Ran(0, "550.1")}, Level.WARN, "older PyTorch"),
        (host.driver, {"driver_version": Ran(0, "470.1")}, Level.FAIL, "too old for every PyTorch"),
        (host.driver, {"driver_version": Ran(0, "?")}, Level.FAIL, "too old for every PyTorch"),
        (host.driver, {}, Level.WARN, "no NVIDIA driver"),
    ],
)
def test_a_host_is_judged_by_what_its_commands_say(
    check: HostCheck, replies: Mapping[str, Ran], level: Level, says: str
) -> None:
    found = judged(check, replies)
    assert (found.level, says in found.why) == (level, True), found
    assert bool(found.remedy) is (level is not Level.OK)


def test_a_remedy_on_a_host_is_one_command_with_its_port() -> None:
    assert host.on(BOX, "df -h") == "ssh -p 2222 ada@box 'df -h'"
    assert host.on(Target("", "box", None), "df -h") == "ssh box 'df -h'"


def test_nothing_is_asked_of_a_host_that_does_not_answer() -> None:
    assert all(check.needs == ("host.reachable",) for check, _ in HOST_CHECKS[1:])
