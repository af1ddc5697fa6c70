"""Laws of a machine that becomes an image: it prepares, says so, waits for its seal, and always goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from startup.agent.clock import AgentClock, Patience
from startup.agent.host import LocalHost
from startup.agent.image import COUNTERS, Preparation
from startup.agent.logs import Log
from startup.agent.packages import Packages
from startup.agent.spec import parse_spec
from startup.agent.stop import Stop
from tests.support.patience import PATIENCE_S, await_truth
from tests.unit.startup.cloud import RUN, Cloud
from tests.unit.startup.machine import Machine, payload, run_spec, stub

SEALED = f"runs/{RUN}/sealed.json"


def preparing(wait_s: float = PATIENCE_S) -> Cloud:
    return Cloud(run_spec(prepare={"ncu": True, "wait_s": wait_s}, timing={"seal_poll_s": 0.05}), payload())


def test_a_machine_that_prepares_measures_nothing_and_goes_when_its_disk_is_sealed(tmp_path: Path) -> None:
    with preparing() as cloud, Machine(cloud, tmp_path) as machine:
        await_truth(lambda: "image_prepared" in cloud.kinds())
        assert cloud.deleted == 0
        with cloud.lock:
            cloud.objects[SEALED] = b"{}"
            cloud.generations[SEALED] = 1
        assert machine.wait() == 0
        assert cloud.said("finished")[0]["detail"] == "the disk was sealed"
        assert not {"case_started", "case_measured", "measurement_planned"} & set(cloud.kinds())
        assert cloud.said("image_prepared")[0]["torch"] == "2.13.0"
        assert cloud.deleted == 1


def test_a_machine_that_nobody_seals_goes_by_itself_and_says_why(tmp_path: Path) -> None:
    with preparing(0.3) as cloud, Machine(cloud, tmp_path) as machine:
        assert machine.wait() == 1
        assert cloud.said("finished")[0]["outcome"] == "failed"
        assert "no client sealed the disk in time" in cloud.said("diagnosed")[0]["detail"]
        assert cloud.deleted == 1


def prepared(tmp_path: Path, *, allow: bool) -> tuple[Preparation, Path]:
    """What prepares a file system of its own, with commands that only note that they were called."""
    root, tools = tmp_path / "root", tmp_path / "bin"
    for name in ("apt-mark", "apt-get", "systemctl", "fstrim"):
        stub(tools, name, f'echo "{name} $*" >>{tmp_path / "called"}')
    for name in ("etc/machine-id", "etc/ssh/ssh_host_ed25519_key", "root/.ssh/authorized_keys", "home/ada/.ssh/id"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("secret")
    (root / "sys/module/nvidia").mkdir(parents=True)
    (root / "sys/module/nvidia/version").write_text("580.95.05\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / "first-boot").write_text("1")
    spec = run_spec(prepare={"ncu": True})
    spec["environment"]["allow_install"] = allow
    clock = AgentClock()
    stop = Stop()
    with (tmp_path / "log").open("w") as stream:
        host = LocalHost(home, {"PATH": str(tools)}, "python3", clock, stop, Log(stream, clock))
    packages = Packages(host, allow, 0, lambda _: None)
    storage: Any = None
    return Preparation(host, packages, storage, SEALED, parse_spec(json.dumps(spec)), home, root), root


def test_what_is_one_machines_own_is_not_on_its_image(tmp_path: Path) -> None:
    made, root = prepared(tmp_path, allow=True)
    limit = Patience(AgentClock(), PATIENCE_S)
    made.hold_kernel(limit)
    made.open_counters(limit)
    made.forget(limit)
    assert (root / "etc/machine-id").read_text() == ""
    assert not [*root.rglob(".ssh/*"), *root.rglob("ssh_host_*")]
    assert not (tmp_path / "home" / "first-boot").exists()
    assert (root / "etc/modprobe.d/bench-profiling.conf").read_text() == COUNTERS
    called = (tmp_path / "called").read_text()
    assert "apt-mark hold linux-image-" in called
    assert "unattended-upgrades" in called
    assert made.installed_driver() == "580.95.05"
    assert str(made.packages.venv) == "/opt/bench/venv"


def test_where_nothing_may_be_installed_nothing_goes_where_images_keep_it(tmp_path: Path) -> None:
    made, _ = prepared(tmp_path, allow=False)
    assert made.packages.venv is None
