"""What holds for every test: nothing is reached but loopback, and this machine's own settings do not leak in."""

from __future__ import annotations

import functools
import gc
import ipaddress
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support import SESSION, bare_python
from tests.support.connects import on_connect
from tests.support.patience import PATIENCE_S

# Some hundred thousand objects of modules and tests live as long as the process: they are looked through seldom.
gc.set_threshold(100_000, 50, 100)

LEAKS = ("BENCH_", "GOOGLE_", "GCE_METADATA", "CLOUDSDK_", "STORAGE_EMULATOR_HOST", "NO_COLOR", "FORCE_COLOR")
ROOT = Path(__file__).resolve().parent.parent
TIERS = ("unit", "integration", "kernels", "search")
BEGUN_FIRST = ("test_packaging.py", "test_waiting.py")
REACHED: list[str] = []
"""Addresses outside loopback that something tried to connect to."""


def _loopback(address: Any) -> None:
    """Raises `PermissionError` for an address that is not this machine's, and writes it down."""
    if not isinstance(address, tuple):  # a Unix socket
        return
    host = str(address[0])
    try:
        outside = not ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        outside = host not in ("localhost", "")
    if outside:
        REACHED.append(f"{host}:{address[1]}")
        raise PermissionError(f"tests talk to loopback only, not to {host}")


on_connect(_loopback)

# The same examples every time, on any machine: what is found is found again, and nobody's change fails by another's
# luck. `--hypothesis-profile=search` draws others.
hypothesis.settings.register_profile(
    "suite", deadline=None, derandomize=True, database=None, print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)  # fmt: skip
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    # What was compiled once is kept, here and for every process that a test starts, as a user's Python does: to
    # compile tests and product anew is half of what collecting costs, in each worker.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in list(os.environ):
        if name.startswith(LEAKS):
            del os.environ[name]
    # Children that use the network libraries are held to the same rule by a proxy that is not there.
    os.environ.update({"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"})
    os.environ.update({"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"})
    os.environ.update({"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"})
    os.environ["COLUMNS"] = "100"
    # A command of a test that has no home of its own fails, in place of starting a cloud in the user's.
    os.environ["BENCH_HOME"] = str(Path(os.devnull) / "no home")
    # Children run this tree, wherever they are started: what is installed may be another, and a relative path another.
    above = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *above]))
    socket.setdefaulttimeout(PATIENCE_S)
    if SESSION not in os.environ:  # set by the process that all others of the session come from
        folder = tempfile.mkdtemp(prefix="spotbench-tests-")
        os.environ[SESSION] = folder
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        bare_python.install(Path(folder) / "python")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier: the directory below tests/ that it is in. Long files whose names come last begin
    first: else one worker is at them when all others have ended."""
    for item in items:
        tier = item.path.relative_to(ROOT / "tests").parts[0]
        if tier in TIERS:
            item.add_marker(tier)
    items.sort(key=lambda item: item.path.name not in BEGUN_FIRST)


def pytest_collection_finish() -> None:
    gc.freeze()
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # workers share the processors among themselves


@pytest.fixture(autouse=True)
def _loopback_only() -> Iterator[None]:
    before = len(REACHED)
    yield
    assert REACHED[before:] == [], "something outside loopback was reached for"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A BENCH_HOME of its own."""
    path = tmp_path / "home"
    path.mkdir()
    return path
