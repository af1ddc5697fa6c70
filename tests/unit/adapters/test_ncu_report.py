"""A report of Nsight Compute is read where NVIDIA's package is there, apart from this process, and told where it is
not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from orchestrator.adapters.ncu_report import pages_of
from orchestrator.analysis.profiles import kernels_of
from orchestrator.core.errors import ConfigError, LocalError

# NVIDIA's package as far as we use it; the "report" is JSON: metrics by name as [value, unit], and rules.
PLAYED = """
import json
MsgType_OPTIMIZATION, MsgType_OK = 4, 1
class Metric:
    def __init__(self, told): self.told = told
    def has_value(self): return self.told[0] is not None
    def value(self): return self.told[0]
    def unit(self): return self.told[1]
class Action:
    def __init__(self, told): self.told = told
    def name(self): return self.told["name"]
    def metric_names(self): return tuple(self.told["metrics"])
    def metric_by_name(self, name):
        found = self.told["metrics"].get(name)
        return None if found is None else Metric(found)
    def rule_results_as_dicts(self): return self.told["rules"]
class Report:
    def __init__(self, told): self.told = told
    def num_ranges(self): return 1
    def range_by_idx(self, at): return self
    def num_actions(self): return len(self.told)
    def action_by_idx(self, at): return Action(self.told[at])
def load_report(path):
    assert path.endswith(".ncu-rep"), path
    return Report(json.load(open(path)))
"""
RULE = {
    "name": "Theoretical Occupancy", "speedup_estimation": {"type": 1, "speedup": 68.75},
    "rule_message": {"title": "t", "message": "limited by registers, \"and\" shared memory", "type": 4},
}  # fmt: skip
KERNELS = [
    {
        "name": "flash", "rules": [RULE, {"name": "quiet", "rule_message": {"message": "fine", "type": 1}}],
        "metrics": {
            "gpu__time_duration.sum": [150560, "ns"], "dram__bytes.sum.per_second": [391727948990.44, "byte/s"],
            "launch__registers_per_thread": [96, "register/thread"], "gone": [None, ""],
        },
    },
    {"name": "second", "rules": [], "metrics": {"gpu__time_duration.sum": [1500, "ns"]}},
]  # fmt: skip


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "ncu_report.py").write_text(PLAYED)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return tmp_path


@pytest.mark.parametrize("packed", [False, True])
def test_a_report_gives_the_figures_and_findings_of_its_kernels(package: Path, packed: bool) -> None:
    report = package / ("one.ncu-rep.gz" if packed else "one.ncu-rep")
    text = json.dumps(KERNELS).encode()
    report.write_bytes(gzip.compress(text) if packed else text)
    first, second = kernels_of(*pages_of(report))
    assert (first.name, first.time_us, first.registers, second.time_us) == ("flash", 150.56, 96, 1.5)
    assert first.dram_bytes == pytest.approx(391727948990.44 * 150.56e-6)
    assert [(hint.rule, hint.speedup) for hint in first.hints] == [("Theoretical Occupancy", 68.75)]
    assert second.hints == ()


def test_what_the_package_cannot_read_is_an_error_that_says_so(package: Path) -> None:
    for name, data in (("torn.ncu-rep", b"no report"), ("torn.ncu-rep.gz", b"no archive")):
        (package / name).write_bytes(data)
        with pytest.raises(LocalError, match="cannot read"):
            pages_of(package / name)
    with pytest.raises(LocalError, match="cannot read"):
        pages_of(package / "absent.ncu-rep")


def test_without_the_package_the_remedy_is_named(tmp_path: Path) -> None:
    (tmp_path / "one.ncu-rep").write_bytes(b"")
    with pytest.raises(ConfigError, match="which is not installed") as caught:
        pages_of(tmp_path / "one.ncu-rep", package="no_such_package_is_there")
    assert caught.value.hint.startswith("pip install ncu-report")
