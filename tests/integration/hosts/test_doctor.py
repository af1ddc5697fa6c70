"""`bench doctor --host`: a real machine, over a real sshd, looked at and left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.integration.cli.conftest import Bench
from tests.integration.hosts.conftest import Client, Start, base_python, with_stand_ins
from tests.integration.hosts.looking import outside_the_cache, processes
from tests.support.ports import deaf_port
from tests.support.sshd import Sshd


def looked_at(bench: Bench, code: int | None = None) -> dict[str, Any]:
    checks = bench("doctor", "--host", "box", "--json", code=code).document["checks"]
    return {check["name"]: check for check in checks}


def test_a_host_is_looked_at_in_its_own_words_and_nothing_is_left_there(bench: Bench, host: Sshd) -> None:
    before = outside_the_cache(host)
    found = looked_at(bench)
    assert found["host.reachable"]["level"] == "ok"
    assert found["host.python"]["why"].startswith("python 3.")
    assert "GB free" in found["host.python"]["why"]
    assert found["host.torch"]["level"] == "ok"
    assert found["host.files"]["level"] == "ok"
    assert found["host.gpu"]["why"]
    assert outside_the_cache(host) == before
    assert not host.cache.exists()
    assert processes(host) == []


def test_a_host_that_is_not_known_names_the_command_that_adds_it(bench: Bench, host: Sshd, client: Client) -> None:
    client.knows()
    found = looked_at(bench, code=6)
    assert found["host.reachable"]["level"] == "fail"
    assert "ssh-keyscan" in found["host.reachable"]["remedy"]
    assert found["host.python"]["level"] == "skipped"


def test_a_host_that_does_not_answer_is_one_failure_and_no_more(bench: Bench, host: Sshd, client: Client) -> None:
    client.configure(f"Host box\n  HostName 127.0.0.1\n  Port {deaf_port()}\n")
    ran = bench("doctor", "--host", "box", code=6)
    assert "nothing listens" in ran.out
    assert "1 fail, 5 skipped" in ran.out


def test_a_key_that_runs_one_command_only_is_one_failure_and_named(bench: Bench, start: Start, client: Client) -> None:
    with start(lines=("ForceCommand /bin/date",)) as server:
        client.reaches(server)
        found = looked_at(bench, code=6)
    assert "this key runs one command only" in found["host.reachable"]["why"]
    assert [name for name, check in found.items() if check["level"] == "fail"] == ["host.reachable"]
    assert found["host.python"]["level"] == found["host.gpu"]["level"] == "skipped"


def test_what_a_login_prints_is_no_part_of_what_a_host_says(bench: Bench, start: Start, client: Client) -> None:
    with start(lines=('ForceCommand echo "Welcome to box"; eval "$SSH_ORIGINAL_COMMAND"',)) as server:
        client.reaches(server)
        found = looked_at(bench)
    assert found["host.reachable"]["level"] == "ok"
    for name in ("host.gpu", "host.driver"):
        assert found[name]["level"] != "fail"
        assert "Welcome" not in found[name]["why"]


def test_a_host_that_moves_no_files_is_one_failure_beside_what_is_right(
    bench: Bench, start: Start, client: Client, tmp_path: Path
) -> None:
    no_sftp = 'ForceCommand test "$SSH_ORIGINAL_COMMAND" != internal-sftp && eval "$SSH_ORIGINAL_COMMAND"'
    with start(environment={"PATH": base_python(tmp_path / "python")}, lines=(no_sftp,)) as server:
        with_stand_ins(server.home)
        client.reaches(server)
        found = looked_at(bench, code=6)
    assert [name for name, check in found.items() if check["level"] == "fail"] == ["host.files"]
    assert "SFTP" in found["host.files"]["why"]


def test_a_host_that_is_no_host_is_refused(bench: Bench) -> None:
    assert bench("doctor", "--host", "-x", code=2).err
