"""Laws of startup.sh: whatever happens, the last word is in the bucket and the VM deletes itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import await_truth
from tests.unit.startup.bootstrapped import assert_left_properly, boot, cloud_for
from tests.unit.startup.cloud import BUCKET, INSTANCE, RUN, Cloud
from tests.unit.startup.machine import CASES, SCRIPT, Machine, payload, run_spec, stub


def test_a_healthy_run_tells_its_story_stores_its_results_and_deletes_its_vm(tmp_path: Path) -> None:
    with cloud_for() as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 0
        assert_left_properly(cloud, "succeeded")
        machine.leaves_nothing()
        assert cloud.kinds()[0] == "vm_booted"
        phases = [data["phase"] for data in cloud.said("phase_finished")]
        assert phases == ["preflight", "environment", "build", "correctness", "measure", "finish"]
        for case in CASES:
            assert cloud.objects[f"runs/{RUN}/cases/{case}.csv"] == f"content of cases/{case}.csv\n".encode()
        log = cloud.artifact("log.txt")
        assert "finish: succeeded" in log
        assert log in machine.serial(), "the serial console shows what log.txt has"


def test_a_bucket_that_never_answers_does_not_keep_the_vm_alive(tmp_path: Path) -> None:
    with cloud_for(timing={"storage_patience_s": 0.3, "hurried_finish_s": 0.3}, limits={"finish": 0.5}) as cloud:
        cloud.fail("/upload/", status=503, times=1e9)
        with Machine(cloud, tmp_path) as machine:
            assert machine.wait() != 0
            assert "the last word could not be stored" in machine.serial()
        assert cloud.deleted == 1


def test_a_bucket_back_after_the_agent_gave_up_gets_its_own_last_word(tmp_path: Path) -> None:
    with cloud_for(timing={"storage_patience_s": 0.2}, limits={"finish": 0.4}) as cloud:
        cloud.fail("uploadType=multipart", status=503, times=1e9)
        boot(cloud, tmp_path)
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "storage_unreachable"
        assert "vm_exiting" not in cloud.kinds()


def test_after_a_reboot_a_finished_run_only_deletes_its_vm(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        boot(cloud, tmp_path)
        before = list(cloud.journal)
        boot(cloud, tmp_path)
        assert cloud.journal == [*before, "DELETE instance"]


def test_a_run_that_a_reboot_interrupted_begins_again_and_keeps_what_it_had(tmp_path: Path) -> None:
    with cloud_for({"measure": [{"healthy": 1}, {"hang": 1}]}) as cloud:
        with Machine(cloud, tmp_path):
            await_truth(lambda: len(cloud.said("case_measured")) == 2)
        assert cloud.deleted == 0
        cloud.metadata["instance/attributes/bench-run"] = json.dumps(run_spec())
        boot(cloud, tmp_path)
        assert_left_properly(cloud, "succeeded")
        assert len(cloud.said("case_measured")) == 2, "a finished case is not measured again"
        sequence = [event["seq"] for event in cloud.events()]
        assert sequence == list(range(1, len(sequence) + 1)), "a writer never uses a number twice"


def test_a_crashing_agents_own_words_do_not_break_the_last_event(tmp_path: Path) -> None:
    evil = '"}} $(false) \\" `x` {"a": "'
    with cloud_for({"measure": [{"log": evil}, {"kill_parent": 1}]}) as cloud, Machine(cloud, tmp_path) as machine:
        machine.wait()
        assert_left_properly(cloud, "failed")


def test_the_script_is_clean_short_and_never_stops_at_an_error() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    found = subprocess.run([str(shellcheck), str(SCRIPT)], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    lines = SCRIPT.read_text().splitlines()
    assert len(lines) <= 150
    assert not any(line.strip().startswith("set -e") for line in lines)


def test_the_script_expands_no_command_while_it_traps_signals() -> None:
    lines = SCRIPT.read_text().partition("trap on_signal TERM")[2].splitlines()
    steps = [line for line in lines if not re.match(r" |\w+\(\)", line)]  # functions run in other processes
    assert steps[-1].startswith("code=")
    assert [line for line in steps if re.search(r"\$\((?!\()|[<>]\(", line)] == []


# How startup.sh deletes its VM, and what it does when the API refuses.


def test_the_deletion_is_repeated_until_the_api_accepts_it(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        refused = cloud.fail("DELETE", status=503, times=3)
        cut = cloud.fail("DELETE", cut="before", times=2)
        boot(cloud, tmp_path)
        assert (refused.fired, cut.fired) == (3, 2)
        assert_left_properly(cloud, "succeeded")


def test_a_deletion_whose_answer_is_lost_is_not_taken_for_granted(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.fail("DELETE", cut="after")
        boot(cloud, tmp_path)
        assert cloud.deleted == 2


def test_a_vm_that_is_already_gone_has_nothing_left_to_delete(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        fault = cloud.fail("DELETE", status=404, times=9)
        boot(cloud, tmp_path)
        assert fault.fired == 1


def test_the_last_resort_comes_only_after_the_api_has_refused_every_time(tmp_path: Path) -> None:
    resort = stub(tmp_path / "bin", "last-resort", f"touch {tmp_path}/shut-down")
    env = {"BENCH_DELETE_TRIES": "3", "BENCH_LAST_RESORT": str(resort)}
    with cloud_for() as cloud:
        fault = cloud.fail("DELETE", status=403, times=1e9)
        boot(cloud, tmp_path, **env)
        assert fault.fired == 3
        assert (tmp_path / "shut-down").exists()


def play(tmp_path: Path, steps: str) -> list[str]:
    """What steps print that use the script's own functions on what looks like a real VM: without a variable of the tests,
    and with an API that always refuses."""
    functions = SCRIPT.read_text().partition('mkdir -p "$dir"; trap')[0]
    text = f"""{functions}
dir={tmp_path} name=vm
sleep() {{ :; }}
delete_self() {{ echo asked; return 1; }}
shutdown() {{ echo "shutdown $*"; }}
{steps}"""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BENCH_")}
    ran = subprocess.run(["bash", "-c", text], capture_output=True, text=True, env=clean, timeout=600)
    return [line for line in ran.stdout.splitlines() if " boot: " not in line]


def test_as_it_ships_the_api_is_asked_150_times_before_the_vm_shuts_itself_down(tmp_path: Path) -> None:
    assert play(tmp_path, "finish") == ["asked"] * 150 + ["shutdown -P now"]


def test_a_process_that_runs_the_exit_trap_of_the_script_does_not_end_the_vm(tmp_path: Path) -> None:
    """As bash does, rarely, in a process that a signal ends just after its fork."""
    assert play(tmp_path, "(finish)\necho unharmed") == ["unharmed"]


def test_a_machine_that_only_stands_in_for_a_vm_is_never_shut_down(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.fail("DELETE", status=403, times=1e9)
        stub(tmp_path / "bin", "shutdown", f"touch {tmp_path}/shut-down")
        boot(cloud, tmp_path, BENCH_DELETE_TRIES="2")
        assert not (tmp_path / "shut-down").exists()


def mismatched(machine: Machine, fix: str) -> Machine:
    """The machine with a driver whose libraries were replaced, and with what its reboot does."""
    said = "Failed to initialize NVML: Driver/library version mismatch"
    stub(machine.bin, "nvidia-smi", f"[ -e {machine.home}/fixed ] && echo 580.95.05 || {{ echo '{said}'; exit 18; }}")
    machine.env |= {"BENCH_REBOOT": str(stub(machine.bin, "reboot", fix)), "BENCH_REBOOT_WAIT_S": "30"}
    return machine


def test_a_driver_that_an_update_replaced_is_healed_by_one_reboot(tmp_path: Path) -> None:
    with cloud_for(require_cuda=True) as cloud:
        machine = mismatched(Machine(cloud, tmp_path), f"touch {tmp_path}/fixed; kill -KILL $PPID")
        with machine:
            assert machine.wait() == -9
        assert cloud.deleted == 0, "the machine goes on after it"
        assert [data["what"] for data in cloud.said("healed")].count("reboot") == 1
        assert cloud.said("finished") == []
        with machine:
            machine.wait()
        assert len(cloud.said("vm_booted")) == 2
        assert "Driver/library" not in machine.serial()
        assert cloud.deleted == 1


@pytest.mark.parametrize("fix", ["exit 1", "kill -KILL $PPID"], ids=["refused", "in vain"])
def test_a_reboot_that_mends_nothing_is_the_end_and_is_not_repeated(tmp_path: Path, fix: str) -> None:
    with cloud_for(require_cuda=True) as cloud:
        machine = mismatched(Machine(cloud, tmp_path), fix)
        for _ in range(2 if "KILL" in fix else 1):
            with machine:
                machine.wait()
        assert [data["what"] for data in cloud.said("healed")].count("reboot") == 1
        assert [data["cause"] for data in cloud.said("diagnosed")] == ["no_cuda"]
        assert cloud.deleted == 1


# How startup.sh reads its metadata: late, odd, broken or missing.


def test_metadata_is_data_whatever_characters_it_has(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    evil = f'"\'; touch {trap}; $(touch {trap}) `touch {trap}` \\ \n %s | & "run_id": "other", "bucket": "theirs"'
    spec = run_spec()
    spec = {"comment": evil, **spec}
    spec["harness"]["note"] = {"x": evil, "y": [evil]}
    script = {
        "build": [{"log": evil}, {"say": {"fact": "gate", "name": "kernel_loads", "passed": True, "detail": evil}}]
    }
    spec["harness"]["script"] = script
    with Cloud(spec, payload()) as cloud, Machine(cloud, tmp_path) as machine:
        machine.wait()
        assert_left_properly(cloud, "succeeded")
        assert not trap.exists()
        assert evil in [data["detail"] for data in cloud.said("gate_passed")]


def test_a_spec_that_is_missing_or_broken_still_ends_in_a_deletion(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.metadata["instance/attributes/bench-run"] = "{"
        boot(cloud, tmp_path)
        assert cloud.journal == ["DELETE instance"]


def test_a_spec_that_the_agent_refuses_is_reported_by_the_bootstrap(tmp_path: Path) -> None:
    spec = run_spec()
    del spec["phase_limits_s"]["build"]
    with Cloud(spec, payload()) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 3
        assert_left_properly(cloud, "failed")
        assert "build" in cloud.said("diagnosed")[0]["detail"]


def test_a_metadata_server_that_is_late_is_waited_for(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        cloud.fail("instance/name", status=503, times=2)
        cloud.fail("attributes/bench-run", cut="before", times=2)
        boot(cloud, tmp_path)
        assert_left_properly(cloud, "succeeded")


def test_pretty_printed_metadata_is_read_too(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        for name in ("bench-run", "bench-payload", "bench-endpoints"):
            key = "instance/attributes/" + name
            cloud.metadata[key] = json.dumps(json.loads(cloud.metadata[key]), indent=4, sort_keys=True)
        boot(cloud, tmp_path)
        assert_left_properly(cloud, "succeeded")


def test_without_endpoints_the_script_addresses_google() -> None:
    text = SCRIPT.read_text()
    assert "https://storage.googleapis.com" in text
    assert "https://compute.googleapis.com" in text
    assert BUCKET not in text
    assert INSTANCE not in text


# Which payload startup.sh runs, and what it says of one that it does not run.


def test_a_payload_with_another_checksum_is_never_run(tmp_path: Path) -> None:
    with Cloud(run_spec(), payload(), sha256="0" * 64) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 1
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "payload_checksum"
        assert not machine.vm_file("payload").exists()


@pytest.mark.parametrize("folder", ["a\nfolder", "a \\ $(folder)"])
def test_a_payload_is_the_one_it_should_be_whatever_its_folder_is_called(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    with cloud_for() as cloud, Machine(cloud, tmp_path / folder) as machine:
        assert machine.wait() == 0, machine.serial()
        assert_left_properly(cloud, "succeeded")


def test_a_payload_that_is_not_there_is_named(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        del cloud.objects[f"payloads/{cloud.sha256}.tar.gz"]
        boot(cloud, tmp_path)
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "payload_missing"
        assert sum("alt=media" in line for line in cloud.requests) == 1, "what is not there is not asked for again"


def test_a_payload_that_is_no_archive_is_named(tmp_path: Path) -> None:
    with Cloud(run_spec(), b"not an archive") as cloud, Machine(cloud, tmp_path) as machine:
        machine.wait()
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "payload_missing"


@pytest.mark.parametrize("what", [{"status": 503}, {"status": 429}, {"cut": "before"}, {"cut": "after"}])
def test_a_download_is_repeated_until_it_works(tmp_path: Path, what: dict[str, object]) -> None:
    with cloud_for() as cloud:
        fault = cloud.fail("alt=media", times=3, **what)
        boot(cloud, tmp_path)
        assert_left_properly(cloud, "succeeded")
        assert fault.fired == 3


# What startup.sh does on a VM without a Python that is new enough.


def folder_of(tmp_path: Path, programs: str) -> Path:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in programs.split():
        (tools / name).symlink_to(shutil.which(name) or "")
    return tools


def test_a_vm_without_python_says_so_and_goes(tmp_path: Path) -> None:
    names = "bash cat curl cut date env grep head mkdir mv rm sed sha256sum sleep tail tar tee touch tr"
    tools = folder_of(tmp_path, names)
    with cloud_for() as cloud, Machine(cloud, tmp_path, path=str(tools)) as machine:
        machine.wait()
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "no_python"


def test_a_vm_without_python_gets_one_where_installing_is_allowed(tmp_path: Path) -> None:
    names = "bash cat chmod cp curl cut date env grep head mkdir mv rm sed sha256sum sh sleep tail tar tee timeout touch tr gzip"
    tools = folder_of(tmp_path, names)
    spec = run_spec(environment={"torch": "2.13.0", "allow_install": True, "min_free_gb": 0})
    install = f'case "$*" in *install*python3*) cp {tmp_path}/bin/python3 {tools}/python3 ;; esac'
    update = f"""case "$*" in *update*) echo x >> {tmp_path}/updates
      [ "$(grep -c x {tmp_path}/updates)" -gt 3 ] || {{ echo "E: Could not get lock /var/lib/apt/lists/lock"; exit 100; }}
    esac"""
    stub(tools, "apt-get", f"{update}\n{install}")
    with Cloud(spec, payload()) as cloud, Machine(cloud, tmp_path, path=str(tools)) as machine:
        machine.wait()
        assert_left_properly(cloud, "succeeded")
    assert len((tmp_path / "updates").read_text().split()) == 4, "the lock of the lists is waited for"


def test_a_python_that_is_too_old_is_no_python(tmp_path: Path) -> None:
    with cloud_for() as cloud:
        old = Machine(cloud, tmp_path)
        stub(old.bin, "python3", "exit 1")
        with old as machine:
            machine.wait()
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "no_python"
