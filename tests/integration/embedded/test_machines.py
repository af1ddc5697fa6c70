"""VMs that really run: what their scripts find, how they end, and that nothing of them stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded import supervisor
from orchestrator.embedded.fleet import Durations
from orchestrator.embedded.machine import MARK, ProcessMachine, start_supervised
from orchestrator.embedded.server import EmbeddedCloud
from tests.support.patience import PATIENCE_S, await_truth, living
from tests.unit.embedded.builders import RUN, ZONE, Rest, insert_body, scheduling

NAME = f"bench-{RUN}-1"
QUICK = Durations(0.01, 0.01, 0.0, 0.01, 0.02, 1.0)
ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[EmbeddedCloud]:
    with EmbeddedCloud(tmp_path / "cloud", durations=QUICK) as made:
        yield made


@pytest.fixture
def rest(cloud: EmbeddedCloud) -> Iterator[Rest]:
    made = Rest(cloud)
    yield made
    made.session.close()


def script(text: str) -> dict[str, Any]:
    return insert_body(
        metadata={"items": [{"key": "startup-script", "value": text}, {"key": "bench-run", "value": "{}"}]}
    )


def serial(rest: Rest) -> str:
    status, answer = rest.call("GET", f"/zones/{ZONE}/instances/{NAME}/serialPort")
    return str(answer["contents"]) if status == 200 else ""


def await_word(rest: Rest, word: str) -> None:
    await_truth(lambda: word in serial(rest), f"{word} on the serial port")


def marked(vm_id: str) -> list[int]:
    """Every living process that carries a VM's mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                alive = (entry / "stat").read_text().rpartition(") ")[2][0] != "Z"
                if alive and f"{MARK}={vm_id}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def number_after(rest: Rest, word: str) -> int:
    await_truth(lambda: f"{word}=" in serial(rest) and serial(rest).endswith("\n"), f"{word} on the serial port")
    return int(serial(rest).partition(f"{word}=")[2].split()[0])


FINDS = """#!/bin/bash
echo "python=$(command -v python3)"
echo "name=$(curl -s -H 'Metadata-Flavor: Google' "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/name")"
cd "$BENCH_VM_DIR" && pwd >where && echo "home=$HOME"
env | cut -d= -f1 | sort | tr '\\n' ' '
echo "input=$(cat | wc -c)"
echo ready
"""


def test_a_startup_script_sees_its_metadata_and_python_not_the_hosts_environment(
    cloud: EmbeddedCloud, rest: Rest
) -> None:
    os.environ["SOMETHING_OF_THE_HOST"] = "1"
    try:
        rest.insert(script(FINDS))
        await_word(rest, "ready")
    finally:
        del os.environ["SOMETHING_OF_THE_HOST"]
    output = serial(rest)
    assert f"python={Path(sys.executable).parent}/python3" in output
    assert f"name={NAME}" in output
    assert f"home={cloud.home}/vms/{NAME}-" in output
    assert "input=0" in output
    for leaked in ("SOMETHING_OF_THE_HOST", "PYTHONPATH", "HTTP_PROXY", "http_proxy", "NO_PROXY"):
        assert leaked not in output.split()


def test_a_vm_whose_script_has_ended_runs_on_until_it_is_deleted_and_leaves_no_files(
    cloud: EmbeddedCloud, rest: Rest
) -> None:
    rest.insert(script("#!/bin/bash\necho done\n"))
    await_word(rest, "done")
    assert rest.instance()["status"] == "RUNNING"
    rest.delete(NAME)
    await_truth(lambda: rest.instance() is None)
    assert list((cloud.home / "vms").iterdir()) == []


ESCAPES = """#!/bin/bash
trap '' TERM
python3 -c 'import os, time; os.setsid(); os.fork() and os._exit(0); print(f"session={os.getpid()}", flush=True); time.sleep(600)'
env -i setsid bash -c 'trap "" TERM; echo bare=$$; sleep 600' &
sleep 600
"""


def test_no_process_outlives_its_vm_whatever_session_or_environment_it_has_fled_to(
    cloud: EmbeddedCloud, rest: Rest
) -> None:
    rest.insert(script(ESCAPES))
    fled = [number_after(rest, "session"), number_after(rest, "bare")]
    assert all(living(pid) for pid in fled)
    rest.delete(NAME)
    await_truth(lambda: rest.instance() is None)
    assert not any(living(pid) for pid in fled)


def test_at_its_deadline_a_real_vm_is_killed_and_billed_for_no_more_than_its_grace(tmp_path: Path) -> None:
    # The shortest run that the API admits is thirty seconds: the deadline is fired by hand.
    with EmbeddedCloud(tmp_path, durations=QUICK) as cloud:
        rest = Rest(cloud)
        rest.insert(script("#!/bin/bash\necho pid=$$\nsleep 600\n"))
        pid = number_after(rest, "pid")
        vm = cloud.fleet.named(NAME)
        assert vm is not None
        cloud.fleet._expire(vm)
        await_truth(lambda: rest.instance() is None)
        rest.session.close()
        assert not living(pid)
        (row,) = cloud.bill().rows
        assert row.ended_by == "deadline"


# It asks without waiting for a change: one that came before the first question would be waited for in vain. A shell whose
# sleep is told to end along with it says so on standard error, which is of no interest here.
NOTICES = """#!/bin/bash
exec 2>/dev/null
trap 'echo told; exit 0' TERM
echo ready
url="http://$GCE_METADATA_HOST/computeMetadata/v1/instance/preempted"
while [[ $(curl -s -H 'Metadata-Flavor: Google' "$url") != TRUE ]]; do sleep 0.02; done
echo noticed
while :; do sleep 0.02; done
"""


def test_a_preempted_vm_hears_of_it_then_is_told_to_end(tmp_path: Path) -> None:
    # The end of its notice is fired by hand, and its grace is no limit: what has time to notice is another's affair.
    with EmbeddedCloud(tmp_path, durations=replace(QUICK, grace_s=PATIENCE_S)) as cloud:
        rest = Rest(cloud)
        rest.insert(script(NOTICES))
        await_word(rest, "ready")
        vm = cloud.fleet.find(ZONE, NAME)
        cloud.preempt(NAME, PATIENCE_S)
        await_word(rest, "noticed")
        assert rest.instance()["status"] == "RUNNING"
        cloud.fleet._stop(vm, "preemption")
        await_truth(lambda: rest.instance() is None)
        rest.session.close()
        assert vm.guest.console.read().contents.split() == ["ready", "noticed", "told"]


def test_a_vm_is_told_to_end_when_its_notice_is_over(cloud: EmbeddedCloud, rest: Rest) -> None:
    rest.insert(script("#!/bin/bash\ntrap 'exit 0' TERM\necho ready\nwhile :; do sleep 0.02; done\n"))
    await_word(rest, "ready")
    cloud.preempt(NAME, 0.1)
    await_truth(lambda: rest.instance() is None)
    (row,) = cloud.bill().rows
    assert row.ended_by == "preemption"


def test_a_vm_preempted_without_notice_is_gone_before_the_call_returns(cloud: EmbeddedCloud, rest: Rest) -> None:
    rest.insert(script("#!/bin/bash\necho pid=$$\nsleep 600\n"))
    pid = number_after(rest, "pid")
    cloud.preempt(NAME, 0)
    assert not living(pid)
    assert rest.instance() is None


@pytest.mark.parametrize(("fault", "state"), [("hang", "T"), ("kill", None)])
def test_a_strike_hits_the_harness_and_nothing_else(
    cloud: EmbeddedCloud, rest: Rest, fault: str, state: str | None
) -> None:
    rest.insert(
        script("#!/bin/bash\nbash -c 'echo harness=$$; sleep 600; :' kernels.harness &\necho other=$$\nsleep 600\n")
    )
    harness, other = number_after(rest, "harness"), number_after(rest, "other")
    machine = cloud.fleet.find(ZONE, NAME).machine
    assert machine.strike(fault, "harness")
    assert not machine.strike(fault, "agent")
    if state is None:
        await_truth(lambda: not living(harness))
    else:
        await_truth(lambda: Path(f"/proc/{harness}/stat").read_text().rpartition(") ")[2][0] == state)
    assert living(other)


def test_a_killed_supervisor_takes_its_vm_with_it_when_the_vm_ends(cloud: EmbeddedCloud, rest: Rest) -> None:
    rest.insert(script("#!/bin/bash\nsetsid sleep 600 &\necho pid=$!\nsleep 600\n"))
    pid = number_after(rest, "pid")
    vm = cloud.fleet.find(ZONE, NAME)
    machine: Any = vm.machine
    machine.supervised.process.kill()
    machine.supervised.process.wait()
    assert machine.supervised.pids() == []
    assert not machine.running()
    rest.delete(NAME)
    await_truth(lambda: rest.instance() is None)
    await_truth(lambda: not living(pid))
    assert marked(vm.id) == []


def test_a_vm_without_a_script_boots_and_does_nothing(cloud: EmbeddedCloud, rest: Rest) -> None:
    rest.insert(insert_body(metadata=None))
    await_truth(lambda: cloud.fleet.find(ZONE, NAME).booted)
    machine: Any = cloud.fleet.find(ZONE, NAME).machine
    assert not machine.running()
    assert not machine.strike("kill", "agent")
    machine.shut_down()
    machine.kill()
    machine.boot()
    assert not machine.running()


def test_an_insert_with_a_deadline_below_the_least_is_refused_before_anything_runs(rest: Rest) -> None:
    body = insert_body(scheduling=scheduling(maxRunDuration={"seconds": "5"}))
    assert rest.call("POST", f"/zones/{ZONE}/instances", body)[0] == 400


# The supervisor


def test_a_supervised_command_is_told_killed_and_waited_for() -> None:
    held = start_supervised(["bash", "-c", "exec 2>/dev/null; trap 'echo told' TERM; echo up; while :; do sleep 0.02; done"],
                     stay=True, environment=ENVIRONMENT, output=subprocess.PIPE)  # fmt: skip
    output = held.process.stdout
    assert output is not None
    with output:
        assert output.readline() == b"up\n"
        held.term()
        assert output.readline() == b"told\n"
        pids = held.pids()
        assert pids
        held.kill()
        held.kill()
        held.term()
        assert held.ended
        assert not any(living(pid) for pid in pids)


def test_a_command_that_is_told_as_it_starts_is_told() -> None:
    """It would end at SIGTERM as soon as it runs."""
    for _ in range(20):
        held = start_supervised(["sleep", "600"], stay=False, environment=ENVIRONMENT, output=subprocess.DEVNULL)
        held.term()
        assert held.process.wait(PATIENCE_S) == -signal.SIGTERM & 0xFF
        held.kill()


def test_a_machine_that_is_shut_down_before_it_boots_never_runs(cloud: EmbeddedCloud, rest: Rest) -> None:
    rest.insert(script("#!/bin/bash\nsleep 600\n"))
    await_truth(lambda: any(vm.machine.running() for vm in cloud.fleet.vms.values()), "its processes")
    (vm,) = cloud.fleet.vms.values()
    unbooted = ProcessMachine(vm.guest)
    unbooted.shut_down()
    unbooted.boot()
    assert unbooted.supervised is None


def test_a_supervisor_that_need_not_stay_ends_with_its_command_and_its_exit_code() -> None:
    held = start_supervised(["bash", "-c", "exit 7"], stay=False, environment=ENVIRONMENT, output=subprocess.DEVNULL)
    assert held.process.wait(600) == 7
    held.term()
    held.kill()


def test_a_command_that_does_not_exist_ends_with_127() -> None:
    held = start_supervised(["/no/such/program"], stay=False, environment=ENVIRONMENT, output=subprocess.DEVNULL)
    assert held.process.wait(600) == 127
    held.kill()


def test_a_terminated_supervisor_kills_what_it_holds() -> None:
    held = start_supervised(
        ["bash", "-c", "echo $$; sleep 600"], stay=True, environment=ENVIRONMENT, output=subprocess.PIPE
    )
    output = held.process.stdout
    assert output is not None
    with output:
        pid = int(output.readline())
    held.process.send_signal(signal.SIGTERM)
    held.process.wait(600)
    assert not living(pid)
    held.kill()


PARENT = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from orchestrator.embedded.machine import start_supervised
command = ["bash", "-c", "setsid sleep 600 & echo $!; sleep 600"]
held = start_supervised(command, stay=True, environment={"PATH": sys.argv[2]}, output=None)
time.sleep(600)
"""


def test_what_a_killed_parent_leaves_behind_ends_with_its_life_line() -> None:
    root = str(Path(supervisor.__file__).parents[2])
    parent = subprocess.Popen([sys.executable, "-c", PARENT, root, os.environ["PATH"]], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as output:
        pid = int(output.readline())
        assert living(pid)
        parent.kill()
        parent.wait()
        await_truth(lambda: not living(pid))


def test_a_process_knows_its_descendants_and_a_stranger_has_none() -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        assert child.pid in supervisor.list_descendants(os.getpid())
        assert supervisor.list_descendants(child.pid) == []
    finally:
        child.kill()
        child.wait()
