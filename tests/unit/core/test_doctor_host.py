"""What plain commands on a host mean, and that none of them changes it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from orchestrator.core.doctor import host
from orchestrator.core.doctor.host import HOST_CHECKS, CommandResult, HostCheck
from orchestrator.core.doctor.verdicts import CheckLevel, CheckVerdict
from orchestrator.core.hosts import HostTarget

BOX = HostTarget("ada", "box", 2222)


def judged(check: HostCheck, replies: Mapping[str, CommandResult]) -> CheckVerdict:
    """The verdict, where a command with one of these words in it is answered so, and any other is not found."""

    def run(line: str) -> CommandResult:
        assert not {"sudo", "install", "rm", "kill"} & set(line.split()), "it only looks"
        return next((ran for word, ran in replies.items() if word in line), CommandResult(127, "", "not found"))

    return check(run, BOX)


TOOLS = "a shell answers\n/usr/bin/bash\n/usr/bin/curl\n/usr/bin/tar\n/usr/bin/setsid\n"
NAMED = "NVIDIA L4, 23034 MiB\n"


@pytest.mark.parametrize(
    ("check", "replies", "level", "says"),
    [
        (host.check_reachable, {"command -v": CommandResult(0, TOOLS)}, CheckLevel.OK, "answers"),
        (
            host.check_reachable,
            {"command -v": CommandResult(255, "", "Permission denied\n")},
            CheckLevel.FAIL,
            "Permission denied",
        ),
        (
            host.check_reachable,
            {"command -v": CommandResult(0, "Fri Nov 27 2026\n")},
            CheckLevel.FAIL,
            "one command only",
        ),
        (host.check_reachable, {"command -v": CommandResult(255)}, CheckLevel.FAIL, "exit 255"),
        (
            host.check_reachable,
            {"command -v": CommandResult(0, "a shell answers\n/usr/bin/bash\n/usr/bin/tar")},
            CheckLevel.FAIL,
            "no curl, setsid",
        ),
        (host.check_gpu, {"name,": CommandResult(0, NAMED), "apps": CommandResult(0, "")}, CheckLevel.OK, "NVIDIA L4"),
        (host.check_gpu, {"name,": CommandResult(0, NAMED * 2), "apps": CommandResult(1)}, CheckLevel.OK, "and 1 more"),
        (
            host.check_gpu,
            {"name,": CommandResult(0, NAMED), "apps": CommandResult(0, "17\n[N/A]\n")},
            CheckLevel.WARN,
            "in use by 17",
        ),
        (host.check_gpu, {"lspci": CommandResult(0, "3D controller: NVIDIA")}, CheckLevel.FAIL, "no driver answers"),
        (host.check_gpu, {"lspci": CommandResult(0, "")}, CheckLevel.WARN, "no NVIDIA GPU"),
        (
            host.check_driver,
            {"driver_version": CommandResult(0, "580.95.05\n580.95.05\n")},
            CheckLevel.OK,
            "driver 580.95.05",
        ),
        (host.check_driver, {"driver_version": CommandResult(0, "550.1")}, CheckLevel.WARN, "older PyTorch"),
        (
            host.check_driver,
            {"driver_version": CommandResult(0, "470.1")},
            CheckLevel.FAIL,
            "too old for every PyTorch",
        ),
        (host.check_driver, {"driver_version": CommandResult(0, "?")}, CheckLevel.FAIL, "too old for every PyTorch"),
        (host.check_driver, {}, CheckLevel.WARN, "no NVIDIA driver"),
    ],
)
def test_a_host_is_judged_by_what_its_commands_say(
    check: HostCheck, replies: Mapping[str, CommandResult], level: CheckLevel, says: str
) -> None:
    found = judged(check, replies)
    assert (found.level, says in found.why) == (level, True), found
    assert bool(found.remedy) is (level is not CheckLevel.OK)


def test_a_remedy_on_a_host_is_one_command_with_its_port() -> None:
    assert host.ssh_command_line(BOX, "df -h") == "ssh -p 2222 ada@box 'df -h'"
    assert host.ssh_command_line(HostTarget("", "box", None), "df -h") == "ssh box 'df -h'"


def test_nothing_is_asked_of_a_host_that_does_not_answer() -> None:
    assert all(check.needs == ("host.reachable",) for check, _ in HOST_CHECKS[1:])
