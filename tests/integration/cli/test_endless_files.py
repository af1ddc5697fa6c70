"""Files that a user names may be of any size and shape, by a slip of the hand or as a joke. Each is refused in words."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Bench
from tests.unit.report.written import csv_text, folder, records

pytestmark = pytest.mark.usefixtures("cloud")

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 30))
TEXTS = {
    "an alias bomb": (BOMB, "more than 100,000 values"),
    "a bomb of merges": (MERGES, "more than 100,000 values"),
    "what holds itself": ("a: &a [*a]\n", "more than 100,000 values"),
    "a deep list": ("a: " + "[" * 60 + "]" * 60, "nested more than 50 levels deep"),
    "a bottomless list": ("a: " + "[" * 100_000, "nested more than 50 levels deep"),
    "bottomless keys": ("a: " + "{a: " * 30_000, "nested more than 50 levels deep"),
    "no text": ("a: \x00\x01", "not YAML"),
}
COMMANDS = {
    "a configuration": (["plan", "{}"], "own.yaml", 2),
    "a configuration's caps": (["budget", "--config", "{}"], "own.yaml", 2),
    "a sweep": (["fleet", "plan", "{}"], "own.yaml", 2),
    "the weather": (["cloud", "weather", "{}"], "own.yaml", 2),
}


def asked(bench: Bench, what: str, file: Path) -> str:
    command, _, code = COMMANDS[what]
    return bench(*(part.format(file) for part in command), code=code).err


@pytest.mark.parametrize("what", COMMANDS)
@pytest.mark.parametrize("shape", TEXTS)
def test_what_would_take_for_ever_to_read_is_refused_with_its_file(bench: Bench, what: str, shape: str) -> None:
    text, words = TEXTS[shape]
    file = bench.home / COMMANDS[what][1]
    file.write_text(text)
    said = asked(bench, what, file)
    assert words in said
    assert file.name in said


@pytest.mark.parametrize("what", COMMANDS)
def test_a_file_of_100_mb_is_refused_unread(bench: Bench, what: str) -> None:
    file = bench.home / COMMANDS[what][1]
    file.touch()
    os.truncate(file, 100 << 20)
    assert f"{file}: it has more than 128 KB" in asked(bench, what, file)
    file.write_bytes(b"\xff\xfe")
    assert f"{file}: not UTF-8 text" in asked(bench, what, file)


def test_a_device_without_an_end_is_no_configuration(bench: Bench) -> None:
    assert "/dev/zero: it has more than 128 KB" in bench("plan", "/dev/zero", code=2).err


@pytest.mark.parametrize("name", ["own.py", "task.yml", "program.yaml"])
def test_a_workload_of_100_mb_is_refused_unread(bench: Bench, name: str) -> None:
    (bench.home / "own").mkdir()
    file = bench.home / "own" / name
    file.touch()
    os.truncate(file, 100 << 20)
    for named in (file, file.parent):
        assert "more than" in bench("plan", str(named), code=2).err


@pytest.mark.parametrize("text", ["x = " + "(" * 5_000, "x = " + "-" * 50_000 + "1", "x = " + "1 +" * 50_000 + "1"])
def test_python_that_no_parser_can_read_is_refused_with_its_file(bench: Bench, text: str) -> None:
    file = bench.home / "own.py"
    file.write_text(f"{text}\n")
    assert "own.py:" in bench("plan", str(file), code=2).err


WORKLOAD = """
def inputs(n, device, generator): ...
def reference(x): ...
def baseline_a(x): ...
"""


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (str({f"n{at}": list(range(100)) for at in range(10)}), "more than 10,000"),
        ('{"n": ' + "[" * 90 + "]" * 90 + "}", "own.py:1: axis n"),
        ('{"n": [' + "1 + " * 950 + "1]}", "own.py:1: nested more deeply"),
    ],
)
def test_axes_without_an_end_are_refused_with_their_file(bench: Bench, axes: str, words: str) -> None:
    file = bench.home / "own.py"
    file.write_text(f"axes = {axes}\n{WORKLOAD}")
    assert words in bench("plan", str(file), code=2).err


@pytest.mark.parametrize("axes", ['{"n": [64 // 0]}', "{(1, 2): [1]}", '{"n": [1 << 10**9, 7 ** 99 ** 9]}'])
def test_axes_that_only_running_the_file_can_judge_are_left_to_the_machine(bench: Bench, axes: str) -> None:
    file = bench.home / "own.py"
    file.write_text(f"axes = {axes}\n{WORKLOAD}")
    bench("plan", str(file))


@pytest.mark.parametrize("shape", TEXTS)
def test_settings_that_nobody_can_read_stop_no_command_for_long(bench: Bench, shape: str) -> None:
    (bench.home / "settings.yaml").write_text(TEXTS[shape][0])
    assert "settings.yaml" in bench("status", code=2).err
    assert "settings.yaml" in bench("init", "--project", "acme-bench", "--yes", code=2).err


@pytest.mark.parametrize("shape", TEXTS)
def test_the_weather_of_the_environment_is_read_before_a_cloud_is_asked_for(
    bench: Bench, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = bench.home / "weather.yaml"
    file.write_text(TEXTS[shape][0])
    monkeypatch.setenv("BENCH_WEATHER", str(file))
    assert TEXTS[shape][1] in bench("status", code=2).err
    file.write_text("faults:\n- {fault: [rain]}\n")
    assert f"{file}: faults[0]: fault must be one of" in bench("status", code=2).err


def test_refreshed_prices_of_100_mb_are_refused_with_what_removes_them(bench: Bench) -> None:
    file = bench.home / "prices.embedded.yaml"
    file.touch()
    os.truncate(file, 100 << 20)
    said = bench("plan", "--gpu", "l4", code=11).err
    assert "more than 128 KB" in said
    assert f"rm {file}" in said


def test_a_page_of_100_mb_is_left_as_it_is(bench: Bench) -> None:
    page = bench.home / "page.md"
    page.touch()
    os.truncate(page, 100 << 20)
    made = folder(bench.home / "results", csv_text(records(lengths=(128,), blocks=8)))
    assert "more than 20 MB" in bench("report", str(made), "--into", str(page), code=11).err
    assert page.stat().st_size == 100 << 20


@pytest.mark.parametrize("name", ["measurements.csv", "measurements.csv.gz", "environment.json"])
def test_results_of_100_mb_without_a_line_are_read_in_parts(bench: Bench, name: str) -> None:
    made = folder(bench.home / "results", csv_text(records(lengths=(128,), blocks=8)))
    file = made / name
    for path in made.glob(f"{file.name.partition('.')[0]}.*"):
        path.unlink()
    if file.suffix == ".gz":
        with gzip.open(file, "wb", compresslevel=1) as opened:
            for _ in range(100):
                opened.write(bytes(1 << 20))
    else:
        file.touch()
        os.truncate(file, 100 << 20)
    tracemalloc.start()
    try:
        bench("report", str(made), "--format", "svg", code=None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 << 20
