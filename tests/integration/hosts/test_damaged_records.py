"""What a host wrote down of its runs may be damaged: it is named, it hides no other run, and nothing stored is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import HostUnfit
from orchestrator.core.host_answers import validate_answer
from orchestrator.core.hosts import HostNeeds, first_lack, gpu_for, host_fingerprint, lacks_packages
from startup.host import paths
from startup.host.remote_ops import main
from tests.unit.core.test_hosts import CARD

VM, OTHER = "bench-20261121-040000-cpu-0001-1", "bench-20261121-050000-cpu-0002-1"
RECORD = {"vm": VM, "id": "7", "labels": {"bench-run": "r"}, "deadline_s": 60, "host_time": 1e9}
STATE = {
    "status": "gone", "pid": 1, "started_at": 1e9, "ended_at": 2e9, "ended_by": "itself", "id": "7",
    "boot": "another", "started_steady": 1.0, "ended_steady": 2.0,
}  # fmt: skip
NONSENSE: list[Any] = [None, True, [], float("nan"), float("inf"), 1e308, -5, 10**400]


def run(cache: Path, record: bytes, state: bytes | None = None, vm: str = VM) -> None:
    """A run whose steward is dead, and whose spool has a file."""
    folder = cache / "runs" / vm
    (folder / "spool").mkdir(parents=True)
    (folder / "spool" / "kept").write_text("x")
    (folder / "alive").touch()
    (folder / "run.json").write_bytes(record)
    if state is not None:
        (folder / "state.json").write_bytes(state)


def listed(cache: Path) -> dict[str, Any]:
    """What is told of the damaged run, beside another that is whole."""
    run(cache, json.dumps(RECORD).encode(), json.dumps(STATE).encode(), OTHER)
    answer = json.loads(json.dumps(main("runs", {"cache": str(cache)}), allow_nan=False))
    told = {one["vm"]: one for one in answer["runs"]}
    assert (told[OTHER]["odd"], told[OTHER]["ended_by"]) == ("", "itself")
    return dict(told[VM])


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("key", ["id", "labels", "deadline_s", "host_time"])
def test_a_record_with_nonsense_in_it_is_named_and_the_run_is_over(tmp_path: Path, key: str, value: object) -> None:
    run(tmp_path, json.dumps({**RECORD, key: value}).encode())
    told = listed(tmp_path)
    assert (told["status"], told["ended_by"], told["files"][0][0]) == ("gone", "lost", "kept")
    assert told["odd"] == f"{tmp_path}/runs/{VM}/run.json has no usable value for {key}"


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("key", list(STATE))
def test_a_state_with_nonsense_in_it_is_named_and_the_run_is_over(tmp_path: Path, key: str, value: Any) -> None:
    run(tmp_path, json.dumps(RECORD).encode(), json.dumps({**STATE, key: value}).encode())
    told = listed(tmp_path)
    assert (told["status"], told["files"][0][0]) == ("gone", "kept")
    sound = key == "pid" and isinstance(value, int)
    assert told["odd"] == ("" if sound else f"{tmp_path}/runs/{VM}/state.json has no usable value for {key}")
    assert 0 <= told["started_at"] <= told["ended_at"] <= 1e11


@pytest.mark.parametrize(
    ("left", "why"),
    [
        (b"", "is not JSON: it was cut off or overwritten"),
        (b'{"vm": "ben', "is not JSON: it was cut off or overwritten"),
        (b"\x00" * 4096, "is not JSON: it was cut off or overwritten"),
        (b"\xff\xfe", "is not JSON: it was cut off or overwritten"),
        (b"[" * 100_000, "is not JSON: it was cut off or overwritten"),
        (b"[]", "is not a JSON object"),
        (b" " * 2**20, "has more than 0 MB"),
    ],
)
@pytest.mark.parametrize("file", ["run.json", "state.json"])
def test_a_file_that_is_no_record_is_named_with_what_is_wrong(
    tmp_path: Path, left: bytes, why: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "MOST_BYTES", 2**19)
    whole = json.dumps(RECORD).encode()
    run(tmp_path, left if file == "run.json" else whole, left if file == "state.json" else None)
    told = listed(tmp_path)
    assert (told["status"], told["ended_by"], told["files"][0][0]) == ("gone", "lost", "kept")
    assert told["odd"] == f"{tmp_path}/runs/{VM}/{file} {why}"


def test_a_folder_in_the_place_of_a_record_is_named(tmp_path: Path) -> None:
    run(tmp_path, b"")
    (tmp_path / "runs" / VM / "run.json").unlink()
    (tmp_path / "runs" / VM / "run.json").mkdir()
    assert listed(tmp_path)["odd"].endswith("run.json cannot be read (Is a directory)")


def test_what_a_newer_version_writes_down_besides_is_not_told(tmp_path: Path) -> None:
    run(tmp_path, json.dumps({**RECORD, "wind": 9}).encode(), json.dumps({**STATE, "mood": [1]}).encode())
    told = listed(tmp_path)
    assert told["odd"] == ""
    assert "mood" not in told


@pytest.mark.parametrize("file", ["run.json", "state.json"])
def test_of_a_newer_versions_record_nothing_is_read_and_it_stays_as_it_is(tmp_path: Path, file: str) -> None:
    record, state = (
        {**one, "schema": 1 + (name == file)} for name, one in (("run.json", RECORD), ("state.json", STATE))
    )
    run(tmp_path, json.dumps(record).encode(), json.dumps(state).encode())
    path = tmp_path / "runs" / VM / file
    before = path.read_bytes()
    told = listed(tmp_path)
    assert told["odd"] == f"{path} was written by a newer version of bench"
    assert told["files"][0][0] == "kept"
    assert path.read_bytes() == before
    with pytest.raises(PermissionError):
        paths.write_json(path, {})


def test_every_record_has_a_number_and_one_without_is_of_the_first_schema(tmp_path: Path) -> None:
    paths.write_json(tmp_path / "new.json", {"vm": VM})
    assert json.loads((tmp_path / "new.json").read_text()) == {"schema": 1, "vm": VM}
    run(tmp_path, json.dumps(RECORD).encode(), json.dumps(STATE).encode())
    assert "schema" not in {**RECORD, **STATE}
    assert listed(tmp_path)["odd"] == ""


# A host's words about itself are data: whatever answers there, a launch and the doctor go on, or say what is odd.


NEEDS = HostNeeds(cuda=True, compiler=True, min_free_gb=4)
PROBE: dict[str, Any] = {
    "platform": "linux", "python": "3.11.7", "executable": "/usr/bin/python3", "os": "Debian", "machine": "x86_64",
    "cpu": "a processor", "cache": "/c", "free_gb": 100.0, "compiler": "g++ 12", "missing": [], "busy": "",
    "gpus": [CARD], "no_gpu": "",
}  # fmt: skip
PACKAGES: dict[str, Any] = {
    "torch": "2.13.0", "numpy": "2", "cuda": "13.0", "usable": True, "error": "", "compiles": "", "pythons": [],
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def judged(said: dict[str, Any], look: str, changed: str) -> dict[str, Any] | None:
    """The look, or None where it was called odd, and for the key that was changed."""
    try:
        return validate_answer(said, look)
    except HostUnfit as exc:
        if changed not in str(exc):
            raise
        return None


def test_what_an_honest_host_says_is_taken_as_it_is() -> None:
    assert validate_answer(PROBE, "probe") == PROBE
    assert validate_answer(PACKAGES, "packages") == PACKAGES


@given(key=st.sampled_from(sorted(PROBE)), value=JSON, gone=st.booleans())
def test_a_look_at_a_host_is_judged_or_called_odd_whatever_it_says(key: str, value: object, gone: bool) -> None:
    said = {name: one for name, one in (PROBE | {key: value}).items() if not (gone and name == key)}
    probe = judged(said, "probe", key)
    if probe is None:
        return
    first_lack(probe, NEEDS, "box")
    host_fingerprint(probe)
    assert gpu_for(probe)


@given(key=st.sampled_from(sorted(PACKAGES)), value=JSON, gone=st.booleans())
def test_what_a_validation_says_is_judged_or_called_odd_whatever_it_is(key: str, value: object, gone: bool) -> None:
    said = {name: one for name, one in (PACKAGES | {key: value}).items() if not (gone and name == key)}
    found = judged(said, "packages", key)
    if found is None:
        return
    lacks_packages(found, NEEDS, "box", "python3", "2.13.0")


@pytest.mark.parametrize("answer", [None, [], "yes", 3, {}])
def test_what_is_no_look_at_all_is_called_odd(answer: object) -> None:
    with pytest.raises(HostUnfit, match="that bench does not know"):
        validate_answer(answer, "probe")
