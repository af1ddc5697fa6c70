"""What a VM runs: `startup/` and `kernels/`, packed so that the same sources make the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from orchestrator import __version__
from orchestrator.core.errors import LocalError

TREES: Final = ("kernels", "startup")
SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "tests", "build", "cache"})
SKIPPED_SUFFIXES: Final = frozenset({".pyc", ".pyo", ".so", ".o", ".a", ".cubin", ".ptx", ".log"})


@dataclass(frozen=True, slots=True)
class PackedPayload:
    sha256: str
    data: bytes
    """A gzipped tar with `startup/`, `kernels/` and `manifest.json`."""
    manifest: bytes
    """JSON: `schema`, `spotbench` (the version), `git_commit`, `git_dirty` (null where not known), `files` (`path`,
    `size`, `sha256`)."""


def bundle_root() -> Path:
    """The folder that holds `kernels/` and `startup/`: inside an installed wheel, or the root of a checkout."""
    package = Path(__file__).resolve().parent.parent
    return find_root((package / "_bundle", package.parent))


def docs_folder() -> Path:
    """The folder of the documentation's pages."""
    return bundle_root() / "docs"


def find_root(candidates: tuple[Path, ...]) -> Path:
    """The first of `candidates` that holds all trees. Raises `LocalError`."""
    for root in candidates:
        if all((root / tree).is_dir() for tree in TREES):
            return root
    raise LocalError(
        f"no {' and '.join(TREES)} folders in {' or '.join(map(str, candidates))}",
        hint="the installation is incomplete: install the package again",
    )


def pack_payload(root: Path, own: Mapping[str, bytes] = MappingProxyType({})) -> PackedPayload:
    """Packs the trees under `root`, and `own` files by their names; times, owners and the file system's order do not
    matter. Raises `LocalError`."""
    try:
        files = [
            (path.relative_to(root).as_posix(), path.read_bytes(), bool(path.stat().st_mode & 0o100))
            for path in _sources(root)
        ]
    except OSError as exc:
        raise LocalError(f"cannot read {exc.filename}: {exc.strerror}", hint="check the rights of that file") from exc
    files += [(name, own[name], False) for name in sorted(own)]
    commit, dirty = _revision(root)
    manifest = {
        "schema": 1,
        "spotbench": __version__,
        "git_commit": commit,
        "git_dirty": dirty,
        "files": [
            {"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data, _ in files
        ],
    }
    document = json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        _add(archive, "manifest.json", document, executable=False)
        for name, data, executable in files:
            _add(archive, name, data, executable=executable)
    packed = io.BytesIO()
    # mtime and filename are in the gzip header too
    with gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0, compresslevel=9) as zipped:
        zipped.write(plain.getvalue())
    data = packed.getvalue()
    return PackedPayload(hashlib.sha256(data).hexdigest(), data, document)


def _sources(root: Path) -> Iterator[Path]:
    for tree in TREES:
        for path in sorted((root / tree).rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
            folders = path.relative_to(root).parts[1:-1]
            skipped = any(part in SKIPPED_FOLDERS or part.startswith(".") for part in folders)
            if skipped or path.name.startswith(".") or path.suffix in SKIPPED_SUFFIXES:
                continue
            if path.is_file() and not path.is_symlink():
                yield path


def _add(archive: tarfile.TarFile, name: str, data: bytes, *, executable: bool) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mode = 0o755 if executable else 0o644
    archive.addfile(entry, io.BytesIO(data))


def _revision(root: Path) -> tuple[str, bool | None]:
    """The commit that `root` is a checkout of, or that the wheel was built from, and whether the trees differ from it;
    `("", None)` if neither is known."""
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "HEAD")
    # an installed package may lie inside somebody else's checkout
    if not top or not commit or Path(top).resolve() != root.resolve():
        return _built_from(root)
    changes = _git(root, "status", "--porcelain", "--", *TREES)
    return commit, None if changes is None else bool(changes)


def _built_from(root: Path) -> tuple[str, bool | None]:
    """What the build left in the wheel."""
    try:
        revision = json.loads((root / "revision.json").read_text(encoding="utf-8"))
        return str(revision["git_commit"]), None if revision["git_dirty"] is None else bool(revision["git_dirty"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
