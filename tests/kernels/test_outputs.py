"""What programs print of themselves is read as data, in five formats, and what is none is refused with the place."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.forms.outputs import READERS, Unreadable, read

NOWHERE = Path("/nonexistent")


def test_repetitions_of_google_benchmark_are_samples_and_an_error_is_a_reason() -> None:
    repeated = [{"name": "copy/8", "run_type": "iteration", "real_time": t, "time_unit": "us"} for t in (1.5, 2.5)]
    summed = {
        "name": "copy/8_median",
        "run_name": "copy/8",
        "run_type": "aggregate",
        "aggregate_name": "median",
        "real_time": 9,
    }
    alone = {
        "name": "add_median",
        "run_name": "add",
        "run_type": "aggregate",
        "aggregate_name": "median",
        "real_time": 7e3,
    }
    broken = {"name": "sub", "error_occurred": True, "error_message": "no device"}
    told = json.dumps({"context": {}, "benchmarks": [*repeated, summed, alone, broken]})
    copy, add, sub = read("google-benchmark", told, NOWHERE)
    assert (copy.name, copy.samples_us) == ("copy/8", [1.5, 2.5])
    assert (add.name, add.samples_us) == ("add", [7.0]), "an aggregate counts only where there is nothing else"
    assert (sub.samples_us, sub.skipped) == ([], "no device")


def test_pytest_benchmark_gives_every_round_or_its_median() -> None:
    saved = {"name": "test_sort[10]", "params": {"n": 10}, "stats": {"data": [1e-6, 2e-6], "median": 9}}
    unsaved = {"name": "test_sum", "params": None, "stats": {"median": 3e-6}}
    one, two = read("pytest-benchmark", json.dumps({"benchmarks": [saved, unsaved]}), NOWHERE)
    assert (one.name, one.axes, one.samples_us) == ("test_sort", {"n": "10"}, [1.0, 2.0])
    assert (two.name, two.samples_us) == ("test_sum", [3.0])


def test_hyperfine_gives_every_run_with_its_parameters() -> None:
    told = {"results": [{"command": "sort a", "times": [0.5, 0.25], "mean": 1, "parameters": {"threads": "4"}}]}
    (one,) = read("hyperfine", json.dumps(told), NOWHERE)
    assert (one.name, one.axes, one.samples_us) == ("sort a", {"threads": "4"}, [500_000.0, 250_000.0])


def nvbench(**state: object) -> str:
    full = {"device": 0, "axis_values": [{"name": "N", "type": "int64", "value": "64"}], "summaries": [], **state}
    return json.dumps({"devices": [{"id": 0}], "benchmarks": [{"name": "copy", "states": [full]}]})


def test_nvbench_gives_its_samples_where_they_were_kept_else_its_mean_or_why_it_skipped(tmp_path: Path) -> None:
    mean = {"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "type": "float64", "value": "2.5e-05"}]}
    (one,) = read("nvbench", nvbench(summaries=[mean]), tmp_path)
    assert (one.axes, one.samples_us) == ({"N": "64"}, [25.0])
    (tmp_path / "0.bin").write_bytes(struct.pack("<2f", 0.5, 0.25))
    kept = {"tag": "nv/json/bin:nv/cold/sample_times", "data": [{"name": "filename", "value": "0.bin"}]}
    (one,) = read("nvbench", nvbench(summaries=[mean, {**kept, "tag": "nv/cold/sample_times"}]), tmp_path)
    assert one.samples_us == [500_000.0, 250_000.0]
    (one,) = read("nvbench", nvbench(is_skipped=True, skip_reason="too large"), tmp_path)
    assert one.skipped == "too large"


def test_a_file_of_samples_outside_the_program_s_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(struct.pack("<f", 0.5))
    (tmp_path / "below").mkdir()
    kept = {"tag": "nv/cold/sample_times", "data": [{"name": "filename", "value": "../0.bin"}]}
    (one,) = read("nvbench", nvbench(summaries=[kept]), tmp_path / "below")
    assert one.skipped == "the program gave no time"


def test_a_csv_has_one_column_of_time_and_every_other_is_an_axis() -> None:
    text = "benchmark,implementation,n,us,skipped\ncopy,mine,4,1.5,\ncopy,mine,4,2.5,\ncopy,theirs,4,,too large\n"
    mine, theirs = read("csv", text, NOWHERE)
    assert (mine.implementation, mine.axes, mine.samples_us) == ("mine", {"n": "4"}, [1.5, 2.5])
    assert (theirs.implementation, theirs.skipped) == ("theirs", "too large")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("csv", "n,time\n1,2\n", "the first line must name one column of time"),
        ("csv", "n,us\n1\n", "line 2: not as many cells as the header"),
        ("csv", "n,us\n1,-2\n", "line 2: '-2' us is not a time"),
        ("csv", "n,us\n1,nan\n", "line 2: 'nan' us is not a time"),
        ("csv", "n,us\n", "csv without a benchmark"),
        ("google-benchmark", "Segmentation fault", "the output is not google-benchmark"),
        ("google-benchmark", "[]", "the output is not google-benchmark"),
        ("hyperfine", '{"results": [{"command": "x", "times": ["a"]}]}', "the output is not hyperfine"),
    ],
)
def test_what_is_no_result_is_refused_with_the_place(kind: str, text: str, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        read(kind, text, NOWHERE)


@given(st.sampled_from(sorted(READERS)), st.recursive(st.none() | st.booleans() | st.floats() | st.text(),
       lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["benchmarks", "results", "name", "times"]), inner)))  # fmt: skip
def test_no_document_makes_a_reader_do_anything_but_read_or_refuse(kind: str, document: object) -> None:
    try:
        read(kind, json.dumps(document), NOWHERE)
    except Unreadable:
        pass
