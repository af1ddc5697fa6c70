"""Reads what a user wrote, which is never run here: typed values of a description in YAML, with file and line of a
mistake, and the syntax tree of a Python file."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any, Final

from orchestrator.core import yamltext
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.catalog import closest_word


@dataclass(frozen=True, slots=True)
class Description:
    """The keys and values of a description. `hint` is the hint of every error about it."""

    file: str
    hint: str
    data: Mapping[str, Any]
    document: yamltext.YamlDocument

    @classmethod
    def read(cls, text: str, file: str, hint: str, known: Sequence[str]) -> Description:
        """The description in `text`. Raises `ConfigError` if it is not a mapping, or has a key that is not in
        `known`."""
        document = yamltext.read_yaml(text)
        for line, key, what in document.problems:
            raise ConfigError(f"{file}:{line}: {f'{key}: ' if key else ''}{what}", hint=hint)
        if not isinstance(document.data, dict):
            raise ConfigError(f"{file}:1: expected keys and values", hint=hint)
        description = cls(file, hint, document.data, document)
        for key in document.data:
            if key not in known:
                near = closest_word(str(key), known)
                suggestion = f"; did you mean {near}?" if near else f"; there are {', '.join(known)}"
                raise description.wrong(f"unknown key {key}{suggestion}", str(key))
        return description

    def wrong(self, words: str, *path: str | int) -> ConfigError:
        """The error about the value at `path`: its file and line, then `words`."""
        return ConfigError(f"{self.file}:{self.document.line(path) or 1}: {words}", hint=self.hint)

    def text(self, key: str, default: str | None = None) -> str:
        """The text of a key. Raises `ConfigError` if it is not text or is empty, or if it is missing without a
        `default`."""
        value = self.data.get(key, default)
        if value is None:
            raise self.wrong(f"there is no {key}")
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"{key} must be text, not {value!r}", key)
        return value

    def positive(self, key: str, default: float) -> float:
        """The number of a key. Raises `ConfigError` unless it is above 0."""
        value = self.data.get(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e9:
            raise self.wrong(f"{key} must be a number above 0, not {value!r}", key)
        return float(value)

    def listed(self, key: str) -> list[Any]:
        """The list of a key; empty if the key is missing. Raises `ConfigError` if the value is not a list."""
        value = self.data.get(key, [])
        if not isinstance(value, list):
            raise self.wrong(f"{key} must be a list, not {value!r}", key)
        return value


MEASURED_WITH: Final = frozenset({"torch", "triton", "numpy", "cupy", "cutlass", "kernels", "startup"})
"""Modules beside Python's own that a workload, or what measures it, imports."""


COMES_ALONG: Final = MEASURED_WITH | frozenset(
    {"functorch", "torchgen", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock"}
    | {"fsspec", "setuptools", "pkg_resources"}
)
"""Modules that are wherever torch is installed."""


def is_module_name(stem: str) -> bool:
    """Return whether a file of this name would be imported in the place of a module of Python's or of PyTorch's."""
    return stem in sys.stdlib_module_names or stem in MEASURED_WITH


class NotPython(ValueError):
    """The text is not valid Python. `line` is the line of the mistake, from 1."""

    def __init__(self, line: int, words: str) -> None:
        super().__init__(words)
        self.line = line


def parse_python(text: str) -> ast.Module:
    """Return the syntax tree of `text`. Raises `NotPython`, also if the text is nested too deeply for the parser."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in strings: the user sees them when it runs
            return ast.parse(text)
    except SyntaxError as exc:
        raise NotPython(exc.lineno or 1, f"syntax error: {exc.msg}") from exc
    except ValueError as exc:
        raise NotPython(1, str(exc)) from exc
    except (RecursionError, MemoryError):
        raise NotPython(1, "nested more deeply than Python can read") from None


def imported_modules(text: str) -> set[str]:
    """Return the names of the modules that `text` imports, anywhere in it; none if it is not valid Python."""
    try:
        nodes = [*ast.walk(parse_python(text))]
    except NotPython:
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.split(".")[0] for name in names}


def required_imports(text: str) -> list[tuple[str, int]]:
    """Return (module, line) of each import without which the file cannot be imported: not those in functions, and not
    those under a condition or in a `try` with a handler. Empty if the text is not Python, or changes `sys.path`."""

    def of(body: Sequence[ast.stmt]) -> Iterator[tuple[str, int]]:
        for node in body:
            if isinstance(node, ast.Import):
                yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module.split(".")[0], node.lineno
            elif isinstance(node, (ast.ClassDef, ast.With)) or (isinstance(node, ast.Try) and not node.handlers):
                yield from of(node.body)

    try:
        return [] if "sys.path" in text else [*of(parse_python(text).body)]
    except NotPython:
        return []


def bound_names(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each name that statements bind, those within `if` and `try` included."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            handlers = [handler.body for handler in getattr(node, "handlers", ())]
            for part in (node.body, *handlers, getattr(node, "orelse", ()), getattr(node, "finalbody", ())):
                yield from bound_names(part)


def strings(text: str) -> list[str]:
    """Return the text constants in `text`, in order; none if it is not valid Python."""
    try:
        nodes = ast.walk(parse_python(text))
    except NotPython:
        return []
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


# Reads what a workload needs on the machine in addition to torch. Pure.


APT: Final = re.compile(r"[a-z0-9][a-z0-9.+-]+", re.ASCII)
LONGEST_LIMIT_S: Final = 3600.0
KEYS: Final = ("requirements", "apt", "build", "build_limit_s")
OBJECT: Final = "own.requirements.json"

Wrong = Callable[[str, str], ConfigError]
"""Makes the error for (what is wrong, key)."""


@dataclass(frozen=True, slots=True)
class WorkloadNeeds:
    """What a workload needs. `pip` has requirements, and names of wheel files beside the workload. `apt` has packages.
    `build` is a line for /bin/sh, and `build_limit_s` its time limit in seconds."""

    pip: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    build: str = ""
    build_limit_s: float = 300.0

    @property
    def anything(self) -> bool:
        return bool(self.pip or self.apt or self.build)

    @property
    def wheels(self) -> tuple[str, ...]:
        """The wheel files that must be beside the workload."""
        return tuple(one for one in self.pip if one.endswith(".whl"))

    def may_provide(self, module: str, imported: Set[str]) -> bool:
        """Return whether a requirement is, or may be, the package of `module`: one that has the name of none of the
        `imported` modules may have any in it, and so may what `build` makes."""
        names = [re.split(r"[^\w.-]", one)[0] for one in self.pip if not one.endswith(".whl")]
        names += [one.partition("-")[0] for one in self.wheels]
        packages = {re.sub(r"[-.]+", "_", name).lower() for name in names}
        return bool(self.build) or module.lower() in packages or bool(packages - {one.lower() for one in imported})

    def installed(self) -> tuple[str, ...]:
        """The packages to install, each with its installer: `pip triton==3.4`, `apt libnuma-dev`."""
        return tuple(sorted([*(f"pip {one}" for one in self.pip), *(f"apt {one}" for one in self.apt)]))

    def as_json(self) -> dict[str, Any]:
        """The needs as JSON data for the machine."""
        return {"schema": 1, **asdict(self)}


NOTHING: Final = WorkloadNeeds()


def parse_needs(values: Mapping[str, Any], wrong: Wrong) -> WorkloadNeeds:
    """The needs in a workload's `values`, under the keys `KEYS`. Raises the error that `wrong` makes if one is
    invalid."""
    pip = _words(values, "requirements", '["triton>=3"]', wrong)
    for package in pip:
        if package.startswith("-") or (package.endswith(".whl") and "/" in package):
            raise wrong(
                f"requirements: {package!r} must be a package, or the name of a wheel beside the file", "requirements"
            )
    apt = _words(values, "apt", '["libnuma-dev"]', wrong)
    for package in apt:
        if not APT.fullmatch(package):
            raise wrong(f"apt: {package!r} is not the name of a package", "apt")
    build = values.get("build", "")
    if not isinstance(build, str):
        raise wrong(f"build must be a line for /bin/sh, not {build!r}", "build")
    limit = values.get("build_limit_s", 300.0)
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit <= LONGEST_LIMIT_S:
        raise wrong(
            f"build_limit_s must be a number of seconds up to {LONGEST_LIMIT_S:g}, not {limit!r}", "build_limit_s"
        )
    return WorkloadNeeds(pip, apt, build, float(limit))


def _words(values: Mapping[str, Any], key: str, example: str, wrong: Wrong) -> tuple[str, ...]:
    listed = values.get(key, ())
    if not isinstance(listed, (list, tuple)) or not all(isinstance(one, str) and one.strip() for one in listed):
        raise wrong(f"{key} must be a list of strings, as {example}", key)
    return tuple(one.strip() for one in listed)
