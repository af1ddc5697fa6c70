"""What startup.sh does on a VM without a Python that is new enough."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.unit.startup.bootstrapped import assert_left_properly, cloud_for
from tests.unit.startup.cloud import Cloud
from tests.unit.startup.machine import Machine, payload, run_spec, stub


def test_a_vm_without_python_says_so_and_goes(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in [
        "bash",
        "cat",
        "curl",
        "cut",
        "date",
        "env",
        "grep",
        "head",
        "mkdir",
        "mv",
        "rm",
        "sed",
        "sha256sum",
        "sleep",
        "tail",
        "tar",
        "tee",
        "touch",
        "tr",
    ]:
        (tools / name).symlink_to(shutil.which(name) or "")
    with cloud_for() as cloud, Machine(cloud, tmp_path, path=str(tools)) as machine:
        machine.wait()
        assert_left_properly(cloud, "failed")
        assert cloud.said("diagnosed")[0]["cause"] == "no_python"


def test_a_vm_without_python_gets_one_where_installing_is_allowed(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    names = "bash cat chmod cp curl cut date env grep head mkdir mv rm sed sha256sum sh sleep tail tar tee timeout touch tr gzip"
    for name in names.split():
        (tools / name).symlink_to(shutil.which(name) or "")
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
