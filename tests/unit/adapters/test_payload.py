from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.payload import bundle_root, find_root, pack_payload
from orchestrator.core.errors import LocalError
from orchestrator.core.naming import payload_object

SOURCES = {
    "startup/startup.sh": b"#!/bin/bash\n",
    "startup/agent/main.py": b"print()\n",
    "kernels/harness/__init__.py": b"",
    "kernels/attention/cuda/fa.cu": b"__global__ void f() {}\n",
}
LITTER = (
    "kernels/__pycache__/x.pyc", "kernels/attention/libattention.so", "kernels/attention/build/fa.o",
    "kernels/attention/tests/test_x.py", "kernels/.ruff_cache/x", "kernels/.DS_Store", "startup/agent/debug.log",
    "orchestrator/secret.py", "README.md",
)  # fmt: skip


def tree(root: Path, *, reverse: bool = False) -> Path:
    names = sorted([*SOURCES, *LITTER], reverse=reverse)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(SOURCES.get(name, b"litter"))
    (root / "startup/startup.sh").chmod(0o755)
    return root


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: member for member in archive}


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def manifest(data: bytes) -> Any:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        file = archive.extractfile("manifest.json")
        assert file is not None
        return json.load(file)


def test_the_payload_has_the_sources_and_nothing_else(tmp_path: Path) -> None:
    assert set(members(pack_payload(tree(tmp_path)).data)) == {"manifest.json", *SOURCES}


def test_the_same_sources_make_the_same_bytes_wherever_and_whenever(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two", reverse=True)
    for path in two.rglob("*"):
        os.utime(path, (1, 1))
    assert pack_payload(one) == pack_payload(two)


def test_one_changed_byte_makes_another_payload(tmp_path: Path) -> None:
    before = pack_payload(tree(tmp_path))
    (tmp_path / "kernels/attention/cuda/fa.cu").write_bytes(b"__global__ void g() {}\n")
    assert pack_payload(tmp_path).sha256 != before.sha256


def test_the_name_is_the_checksum_of_the_bytes(tmp_path: Path) -> None:
    payload = pack_payload(tree(tmp_path))
    assert payload.sha256 == hashlib.sha256(payload.data).hexdigest()
    assert payload_object(payload.sha256) == f"payloads/{payload.sha256}.tar.gz"


def test_times_owners_and_the_gzip_header_are_fixed(tmp_path: Path) -> None:
    payload = pack_payload(tree(tmp_path))
    for member in members(payload.data).values():
        assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")
    assert payload.data[4:8] == b"\0\0\0\0"
    assert payload.data[3] == 0
    assert gzip.decompress(payload.data)


def test_only_the_bit_that_makes_a_script_run_is_kept(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "startup/agent/main.py").chmod(0o600)
    packed = members(pack_payload(root).data)
    assert packed["startup/startup.sh"].mode == 0o755
    assert packed["startup/agent/main.py"].mode == 0o644


def test_the_manifest_lists_every_file_with_its_checksum(tmp_path: Path) -> None:
    payload = pack_payload(tree(tmp_path))
    document = manifest(payload.data)
    assert json.loads(payload.manifest) == document
    assert {entry["path"]: entry["sha256"] for entry in document["files"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in SOURCES.items()
    }


def test_outside_a_checkout_the_revision_is_unknown_not_clean(tmp_path: Path) -> None:
    document = manifest(pack_payload(tree(tmp_path)).data)
    assert (document["git_commit"], document["git_dirty"]) == ("", None)


def test_in_a_checkout_the_manifest_names_the_commit_and_whether_sources_differ(tmp_path: Path) -> None:
    root = tree(tmp_path)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "x")
    document = manifest(pack_payload(root).data)
    assert (document["git_commit"], document["git_dirty"]) == (git(root, "rev-parse", "HEAD"), False)
    (root / "README.md").write_bytes(b"changed")
    assert manifest(pack_payload(root).data)["git_dirty"] is False
    (root / "kernels/attention/cuda/fa.cu").write_bytes(b"changed")
    assert manifest(pack_payload(root).data)["git_dirty"] is True


def test_an_installation_inside_somebody_elses_checkout_does_not_borrow_its_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "x")
    root = tree(tmp_path / "venv" / "bundle")
    assert manifest(pack_payload(root).data)["git_commit"] == ""


def test_without_git_the_revision_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert manifest(pack_payload(tree(tmp_path)).data)["git_dirty"] is None


def test_links_are_not_followed(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    (tmp_path / "secret").write_bytes(b"key")
    (root / "kernels" / "link.py").symlink_to(tmp_path / "secret")
    assert "kernels/link.py" not in members(pack_payload(root).data)


def test_an_incomplete_installation_is_an_error_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="no kernels and startup folders"):
        find_root((tmp_path,))


def test_the_trees_of_a_wheel_come_before_those_of_a_checkout(tmp_path: Path) -> None:
    wheel, checkout = tree(tmp_path / "wheel"), tree(tmp_path / "checkout")
    assert find_root((wheel, checkout)) == wheel
    assert find_root((tmp_path / "none", checkout)) == checkout


def test_here_the_bundle_is_this_checkout() -> None:
    assert bundle_root() == Path(__file__).resolve().parents[3]
