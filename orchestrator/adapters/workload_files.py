"""The files of a user's own workload on their way into the payload: bounded, of known types, no secret among them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.core.config.model import Workload
from orchestrator.core.errors import ConfigError, LocalError
from orchestrator.core.workload import HINT, Sketch, case_id, sketch

FOLDER: Final = "own"
"""Where they lie in the payload."""
TYPES: Final = frozenset(
    {".py", ".cu", ".cuh", ".h", ".hpp", ".c", ".cc", ".cpp", ".txt", ".json", ".yaml", ".yml", ".toml", ".md", ".csv"}
)
MOST_FILES: Final = 500
MOST_BYTES: Final = 20 << 20
SKIPPED: Final = frozenset({"__pycache__", "build", "dist", "node_modules", "results", "venv"})
SECRET_NAMES: Final = re.compile(
    r"\.env(\..*)?|.*\.(pem|key|p12|pfx)|id_(rsa|dsa|ecdsa|ed25519)|.*credentials?(\.json)?|.*secrets?\.(json|ya?ml|txt)"
    r"|\.netrc|\.npmrc|\.pypirc|application_default_credentials\.json",
    re.IGNORECASE,
)
SECRET_TEXT: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\"private_key\"\s*:|AKIA[0-9A-Z]{16}|\bghp_[A-Za-z0-9]{36}"
    rb"|\bhf_[A-Za-z0-9]{34}|\bsk-[A-Za-z0-9_-]{32,}|\bAIza[0-9A-Za-z_-]{35}"
)


def main_file(path: Path) -> Path:
    """The file that holds the workload: itself, or the one in the folder that has the folder's name. Raises
    `ConfigError`."""
    file = path / f"{path.resolve().name}.py" if path.is_dir() else path
    if not file.is_file():
        what = f"{path} has no {file.name}" if path.is_dir() else f"there is no file {path}"
        raise ConfigError(what, hint=HINT)
    return file


def form_of(path: Path) -> str:
    """`kernelbench` for a folder with a `ModelNew` in one of its files and no file of its own name, else `file`."""
    if not path.is_dir() or (path / f"{path.resolve().name}.py").is_file():
        return "file"
    with contextlib.suppress(OSError):
        if any(b"class ModelNew" in one.read_bytes() for one in path.glob("*.py")):
            return "kernelbench"
    return "file"


def sketched(path: Path) -> Sketch:
    """What the workload's file says of itself. Raises `ConfigError`."""
    if form_of(path) == "kernelbench":
        return Sketch(path.resolve().name, (case_id({}),), (), (), (), ())
    file = main_file(path)
    try:
        return sketch(file.read_text(encoding="utf-8"), file.name)
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read {file}: {reason}", hint=HINT) from exc


def own_workload(path: Path) -> Workload:
    """A workload of the user's own, as far as its text tells. Raises `ConfigError`."""
    told = sketched(path)
    return Workload.model_validate(
        {"path": str(path.resolve()), "name": told.name, "cases": told.cases, "form": form_of(path)}
    )


def gathered(path: Path) -> dict[str, bytes]:
    """What goes into the payload, by its name there: one file, or a folder's files; of a file alone also the sources
    beside it that it names. Raises `ConfigError` and `LocalError`."""
    file = path / "any.py" if form_of(path) == "kernelbench" else main_file(path)
    root = file.parent
    wanted = list(_files(root)) if path.is_dir() else [file, *_named(file)]
    found: dict[str, bytes] = {}
    total = 0
    for one in wanted:
        name = one.relative_to(root).as_posix()
        if SECRET_NAMES.fullmatch(one.name):
            raise ConfigError(
                f"{one}: looks like a secret; nothing is sent", hint="move it out of the workload's folder"
            )
        try:
            size = one.stat().st_size
            total += size
            if total > MOST_BYTES or len(found) >= MOST_FILES:
                limit = f"{MOST_BYTES >> 20} MB and {MOST_FILES} files"
                raise ConfigError(
                    f"{root}: more than {limit} (at {name})", hint="keep data out of the workload's folder"
                )
            data = one.read_bytes()
        except OSError as exc:
            raise LocalError(f"cannot read {one}: {exc.strerror}", hint="check the rights of that file") from exc
        secret = SECRET_TEXT.search(data)
        if secret:
            line = data.count(b"\n", 0, secret.start()) + 1
            raise ConfigError(f"{one}:{line}: holds what looks like a secret; nothing is sent", hint="take it out")
        found[f"{FOLDER}/{name}"] = data
    return found


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*"), key=lambda one: one.relative_to(root).as_posix()):
        below = path.relative_to(root).parts[:-1]
        if any(part in SKIPPED or part.startswith(".") for part in below) or path.is_symlink() or not path.is_file():
            continue
        if SECRET_NAMES.fullmatch(path.name) or path.suffix in TYPES:
            yield path


def _named(file: Path) -> Iterator[Path]:
    """Sources beside a file that its text names: `softmax.cu`, and what these include."""
    text = file.read_text(encoding="utf-8")
    for one in sorted(file.parent.glob("*.cu*")):
        if re.search(rf"['\"]{re.escape(one.name)}['\"]", text) or one.suffix == ".cuh":
            yield one
