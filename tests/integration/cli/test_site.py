"""`bench site` as it is typed: into a folder, into the bucket, and served until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from orchestrator.core.naming import index_object
from orchestrator.wiring import wire
from tests.integration.cli.conftest import Bench
from tests.unit.site.written import names, store

pytestmark = pytest.mark.usefixtures("cloud")


def test_a_folder_gets_the_pages_and_the_bucket_too_where_that_is_asked(bench: Bench, tmp_path: Path) -> None:
    bucket = wire().bucket
    store(bucket, 0)
    store(bucket, 1)
    before = bucket.read(index_object(names(0)))
    first = bench("site", "--out", str(tmp_path / "s"), "--json").document
    assert (first["runs"], first["read"], first["published"]) == (2, 2, None)
    assert names(1) in Path(first["index"]).read_text()
    again = bench("site", "--out", str(tmp_path / "s"), "--publish", "site/all", "--json").document
    assert (again["read"], again["written"]) == (0, 0)
    assert again["published"] == again["pages"] + 1
    stored = {entry.name for entry in bucket.list("site/")}
    assert {"site/all/index.html", "site/all/site.json", f"site/all/runs/{names(0)}.html"} <= stored
    assert bucket.read(index_object(names(0))) == before
    said = bench("site", "--out", str(tmp_path / "s"), "--publish", "site/all").out
    assert "2 runs, 0 read" in said
    assert "stored 0 new or changed pages" in said


@pytest.mark.parametrize("prefix", ["runs", "ledger", "index/x", "site/../runs", "/site", "site//x", "sites"])
def test_pages_are_stored_nowhere_but_under_site(bench: Bench, prefix: str) -> None:
    assert "--publish site" in bench("site", "--publish", prefix, code=2).err


def test_a_folder_of_somebody_elses_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    assert "contains files that are not a site of bench" in bench("site", "--out", str(tmp_path / "mine"), code=2).err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_it_serves_what_the_bucket_holds_until_it_is_interrupted(bench: Bench, tmp_path: Path) -> None:
    bucket = wire().bucket
    run = store(bucket, 0)
    # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
    command = [
        "env", "--default-signal=INT", str(Path(sys.executable).with_name("bench")), "site", "--out",
        str(tmp_path / "s"), "--serve",
    ]  # fmt: skip
    environment = os.environ | {"BENCH_HOME": str(bench.home), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        url = re.search(r"http://127\.0\.0\.1:\d+/", lines[1])
        assert url is not None, lines
        with urllib.request.urlopen(f"{url[0]}runs/{run}.html", timeout=600) as answer:
            assert run in answer.read().decode()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, (out, err)
        assert "stopped serving" in err
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert json.loads((tmp_path / "s" / "site.json").read_text())["runs"].keys() == {run}
