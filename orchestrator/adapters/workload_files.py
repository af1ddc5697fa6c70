"""Collects the files of a user's own workload for the payload: bounded, of known types, and without secrets."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final

from orchestrator.core.config.model import Form, Workload
from orchestrator.core.errors import ConfigError, LocalError
from orchestrator.core.forms import flashinfer, gpumode, kernelbench, program
from orchestrator.core.forms.gpumode import TASK_FILES
from orchestrator.core.forms.reading import (
    COMES_ALONG,
    NOTHING,
    OBJECT,
    WorkloadNeeds,
    imported_modules,
    is_module_name,
    required_imports,
    strings,
)
from orchestrator.core.forms.reading import parse_needs as needs_of
from orchestrator.core.text import MOST_SOURCE, clean_line, count, os_error_text, read_text
from orchestrator.core.workload import HINT, case_id, sketch_workload

REQUIREMENTS: Final = "requirements.txt"
FOLDER: Final = "own"
"""Where they lie in the payload."""
TYPES: Final = frozenset(
    {".py", ".cu", ".cuh", ".h", ".hpp", ".c", ".cc", ".cpp", ".txt", ".json", ".yaml", ".yml", ".toml", ".md", ".csv"}
)
SOURCES: Final = TYPES | {".sh", ".mk", ".cmake", ".rs", ".go", ".in", ".inl", ".lock", ".mod", ".sum"}
"""What a program may be built from."""
MAKEFILES: Final = frozenset({"Makefile", "makefile", "GNUmakefile"})
MOST_FILES: Final = 500
MOST_BYTES: Final = 20 << 20
UNCOUNTED: Final = frozenset({"__pycache__", "node_modules", "venv"})
OUTPUTS: Final = frozenset({"build", "dist", "results"})
SKIPPED: Final = UNCOUNTED | OUTPUTS
SECRET_NAMES: Final = re.compile(
    r"\.env(\..*)?|.*\.(pem|key|p12|pfx)|id_(rsa|dsa|ecdsa|ed25519)|.*credentials?(\.json)?|.*secrets?\.(json|ya?ml|txt)"
    r"|\.netrc|\.npmrc|\.pypirc|application_default_credentials\.json",
    re.IGNORECASE,
)
SECRET_TEXT: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\"private_key\"\s*:|AKIA[0-9A-Z]{16}|\bghp_[A-Za-z0-9]{36}"
    rb"|\bhf_[A-Za-z0-9]{34}|\bsk-[A-Za-z0-9_-]{32,}|\bAIza[0-9A-Za-z_-]{35}"
)


LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class Own:
    """A workload of the user's own on this machine: its form, what its text tells, and its files by their names below
    `own/`. `description` is what the machine that measures is told of it as JSON, where its form has a description."""

    form: Form
    root: Path
    name: str
    cases: tuple[str, ...]
    files: Mapping[str, Path]
    description: Mapping[str, Any] | None = None
    needs: WorkloadNeeds = NOTHING
    grid: tuple[dict[str, Any], ...] = ()
    """The same cases as values by axis, where they are told."""
    notes: tuple[str, ...] = ()
    """What is not used of it, and why."""
    cuda: tuple[str, ...] = ()
    """Its CUDA sources that implementations name: they need a GPU."""


def main_file(path: Path) -> Path:
    """The file that holds the workload: itself, or the one in the folder that has the folder's name. Raises
    `ConfigError`."""
    if not path.exists():
        raise ConfigError(f"there is no file {path}", hint=HINT)
    file = path if path.is_file() else path / f"{path.resolve().name}.py"
    if not file.is_file():
        raise ConfigError(
            f"{path} is a folder of none of the forms that are measured: {_what_it_is(path, file)}", hint=FORMS
        )
    if is_module_name(file.stem):
        raise ConfigError(
            f"{file.name} would be imported in the place of the module {file.stem}", hint="rename the file"
        )
    return file


FORMS: Final = (
    "the forms: a file NAME.py, alone or in a folder NAME (`bench docs your-own-kernel`; `bench new NAME` writes one); "
    "task.yml with reference.py (GPU MODE); files with Model and ModelNew (KernelBench); definitions/ with solutions/ "
    "(FlashInfer-Bench); YAML with a command (a program that measures itself)"
)


def _what_it_is(folder: Path, file: Path) -> str:
    if any((folder / name).exists() for name in HUGGING_FACE):
        return (
            "it is a kernel package for Hugging Face's kernel-builder, which is not run here. Measure what it builds: "
            "write a file with kernel_NAME that calls it"
        )
    there = sorted(one.name for one in folder.glob("*.py"))
    return (
        f"name one of its files: {', '.join(there[:LISTED])}" if there else f"it has no {file.name}, task.yml or YAML"
    )


HUGGING_FACE: Final = ("build.toml", "torch-ext")


def form_of(path: Path) -> Form:
    """`flashinfer` for a trace set or a definition in one; `gpumode` for a `task.yml` or a folder with one;
    `kernelbench` for a folder with a `ModelNew`, or a `Model`
    and its inputs, in a file; else, and for a folder with a file of its own name, `file`."""
    if path.name in TASK_FILES:
        return "gpumode"
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return "program"
    if path.suffix == ".json" and not path.is_dir():
        return "flashinfer"
    if not path.is_dir() or (path / f"{path.resolve().name}.py").is_file():
        return "file"
    if (path / "definitions").is_dir():
        return "flashinfer"
    if any((path / name).is_file() for name in TASK_FILES):
        return "gpumode"
    with contextlib.suppress(OSError):
        if any(kernelbench.is_of_form(_begun(one)) for one in path.glob("*.py")):
            return "kernelbench"
    return "program" if _descriptions(path) else "file"


def _forms_in(folder: Path) -> list[str]:
    """The forms of which a folder has files, as they are called in a note."""
    signs = {
        "a file of the folder's name": (folder / f"{folder.resolve().name}.py").is_file(),
        "a FlashInfer-Bench trace set": (folder / "definitions").is_dir(),
        "a GPU MODE problem": any((folder / name).is_file() for name in TASK_FILES),
        "KernelBench problems": any(kernelbench.is_of_form(_begun(one)) for one in folder.glob("*.py")),
        "the description of a program": bool(_descriptions(folder)),
    }
    return [name for name, there in signs.items() if there]


def read_workload(path: Path) -> Own:
    """The workload at `path`, as far as its text tells. Raises `ConfigError` with file and line."""
    form = form_of(path)
    if form == "gpumode":
        return _gpumode(path if path.is_dir() else path.parent)
    if form == "kernelbench":
        files = _below(path)
        suite = kernelbench.suite({name: text_of(file) for name, file in files.items() if file.suffix == ".py"})
        ids = tuple(map(case_id, suite.cases))
        return Own(form, path, path.resolve().name, ids, files, grid=suite.cases, notes=suite.notes)
    if form == "program":
        return _program(path)
    if form == "flashinfer":
        return _trace_set(path)
    file = main_file(path)
    if kernelbench.is_of_form(_begun(file)) and b"def inputs" not in _begun(file):
        folder = file.parent
        pick = (
            ""
            if sum(b"def get_inputs" in _begun(one) for one in folder.glob("*.py")) < 2
            else f" --set 'workload.axes.problem=[{file.stem}]'"
        )
        raise ConfigError(
            f"{file} is a file of KernelBench's form, whose folder is measured", hint=f"bench launch {folder}/{pick}"
        )
    sketch_of_file = sketch_workload(text_of(file), file.name)
    for entry in sketch_of_file.entries:
        source = file.parent / entry.file
        there = source.is_file() and source.resolve().is_relative_to(file.parent.resolve())
        fault = entry.fault(text_of(source)) if there else f"there is no {entry.file} in its folder"
        if fault:
            raise ConfigError(f"{file.name}:{entry.line}: {fault}", hint=HINT)
    sources = _named(file, [file.parent / entry.file for entry in sketch_of_file.entries])
    files = (
        _below(path) if path.is_dir() else {one.relative_to(file.parent).as_posix(): one for one in (file, *sources)}
    )
    return Own(
        form,
        file.parent,
        sketch_of_file.name,
        sketch_of_file.cases,
        files,
        needs=sketch_of_file.needs,
        grid=sketch_of_file.grid,
        cuda=tuple(sorted({entry.file for entry in sketch_of_file.entries})),
    )


def _gpumode(folder: Path) -> Own:
    described = next(folder / name for name in TASK_FILES if (folder / name).is_file())
    task = gpumode.parse_task(text_of(described), described.name)
    files = _below(folder)
    if gpumode.REFERENCE not in files:
        raise ConfigError(f"{folder} has no {gpumode.REFERENCE}", hint=gpumode.HINT)
    for name, source in task.files.items():
        shared = folder / source
        if name in files or source in files:
            continue
        if not shared.is_file() or shared.is_symlink() or shared.suffix not in TYPES:
            raise ConfigError(f"{described}: files: {source} is not a source file in that folder", hint=gpumode.HINT)
        files[name] = shared
    sources = {name: text_of(one) for name, one in files.items() if one.suffix == ".py"}
    submissions = gpumode.find_submissions(sources, task)
    name = folder.resolve().name
    notes = [*task.notes]
    if submissions.templates:
        notes.append(f"not measured, as task.yml calls it a template: {', '.join(submissions.templates)}")
    if not submissions.paths:
        notes.append("no other file defines custom_kernel(data): only ref_kernel is measured, as `reference`")
    return Own(
        "gpumode",
        folder,
        name,
        task.case_ids,
        files,
        gpumode.as_json(task, submissions.paths, name),
        grid=tuple(map(dict, task.cases)),
        notes=tuple(notes),
    )


def _trace_set(path: Path) -> Own:
    """The workload of a trace set, or of one definition in it. Only what is needed of it is sent."""
    root = path if path.is_dir() else next((one.parent for one in path.parents if one.name == "definitions"), None)
    if root is None or not path.exists():
        raise ConfigError(f"{path} is not in the folder definitions/ of a trace set", hint=flashinfer.HINT)
    files = {
        one.relative_to(root).as_posix(): one
        for folder, suffix in flashinfer.FOLDERS.items()
        for one in _files(root / folder, frozenset({suffix}))
        if one.suffix == suffix
    }
    only = "" if path.is_dir() else path.relative_to(root).as_posix()
    traces = flashinfer.trace_set({name: text_of(one) for name, one in files.items()}, only)
    blobs = {blob: root / blob for case in traces.cases for blob in case.blobs}
    missing = tuple(blob for blob, file in blobs.items() if not _is_blob(file, root))
    name = next(iter(traces.definitions)) if len(traces.definitions) == 1 else root.resolve().name
    sent = {**traces.definitions, **traces.solutions}.values()
    notes = [*traces.notes]
    if missing:
        cases = sum(any(blob in missing for blob in case.blobs) for case in traces.cases)
        notes.append(
            f"{count(cases, 'case')} cannot be measured: inputs are in files that are not there, such as {missing[0]} "
            "(`git lfs pull` in the trace set gets them)"
        )
    return Own(
        "flashinfer",
        root,
        name,
        flashinfer.case_ids(traces),
        {**{one: files[one] for one in sent}, **{one: file for one, file in blobs.items() if one not in missing}},
        flashinfer.as_json(traces, name, missing),
        grid=tuple(dict(case.values) for case in traces.cases),
        notes=tuple(notes),
    )


def trace_set(path: Path) -> Mapping[str, Any]:
    """The description of a trace set of FlashInfer-Bench, or of one definition in it. Raises `ConfigError`."""
    if not path.exists() or form_of(path) != "flashinfer":
        hint = "--trace-set takes what was launched: the trace set's folder, or the file of a definition in it"
        raise ConfigError(f"{path} is no trace set of FlashInfer-Bench", hint=hint)
    return read_workload(path).description or {}


def _is_blob(file: Path, root: Path) -> bool:
    """Return whether a file of inputs is there, within the trace set, and not only a pointer of Git LFS."""
    if not file.is_file() or not file.resolve().is_relative_to(root.resolve()):
        return False
    with file.open("rb") as opened:
        return not opened.read(len(LFS_POINTER)).startswith(LFS_POINTER)


LFS_POINTER: Final = b"version https://git-lfs"


def _descriptions(folder: Path) -> list[Path]:
    """Files of a folder that describe a program."""
    listed = sorted(one for one in folder.glob("*.y*ml") if one.suffix in (".yaml", ".yml") and one.is_file())
    return [one for one in listed if program.is_program(text_of(one))]


def _program(path: Path) -> Own:
    described = _descriptions(path) if path.is_dir() else [path]
    if len(described) != 1:
        names = ", ".join(one.name for one in described)
        raise ConfigError(f"{path} describes {len(described)} programs: {names}", hint="name one of the files")
    described_program = program.parse_program(text_of(described[0]), described[0].name)
    folder, name = described[0].parent, described[0].stem
    return Own(
        "program",
        folder,
        name,
        (),
        _below(folder, SOURCES),
        program.as_json(described_program, name),
        described_program.needs,
    )


def files_of(workload: Workload | None) -> dict[str, bytes]:
    """The files of a workload by their places in the payload; none for the one that the tool brings along."""
    return {} if workload is None else gather_files(Path(workload.path))


def own_workload(path: Path, brings_modules: bool = False) -> Workload:
    """A workload of the user's own, as far as its text tells. Raises `ConfigError`, also for files that will not be
    sent: a plan says what a launch would. With `brings_modules` a module that is missing here may be where it runs."""
    try:
        files, workload = gather_files(path), read_workload(path)
        absent = list(_absent_modules(workload)) if workload.form == "file" else []
    except OSError as exc:
        raise ConfigError(f"cannot look at {clean_line(str(path), 200)}: {os_error_text(exc)}", hint=HINT) from exc
    wheels = [f"wheel {name} {sha256(files[f'{FOLDER}/{name}']).hexdigest()}" for name in workload.needs.wheels]
    needs = (*workload.needs.installed(), *sorted(wheels))
    where = str(path.resolve())
    forms = _forms_in(path) if path.is_dir() else []
    several = [f"the folder has {' and '.join(forms)}: it is measured as the first of them"] if len(forms) > 1 else []
    for one in absent:
        if not (one.is_here or brings_modules):
            raise ConfigError(f"{one.place}: {one.fault}", hint=one.hint)
        several.append(f"{one.place}: imports {one.module}, which another machine has only if requirements name it")
    notes = tuple(clean_line(note, 300) for note in (*several, *workload.notes, *_unsent(with_wheels(workload), path)))
    return Workload(
        path=where,
        name=clean_line(workload.name),
        cases=workload.cases,
        form=workload.form,
        needs=needs,
        grid=workload.grid,
        notes=notes,
        cuda=workload.cuda,
        gpus=int((workload.description or {}).get("gpus", 0)),
    )


@dataclass(frozen=True, slots=True)
class AbsentModule:
    """A module that a workload imports, that is not sent, and that comes neither with torch nor by a requirement."""

    place: str
    module: str
    folder: Path
    is_here: bool
    """Whether this computer's Python has it."""

    @property
    def fault(self) -> str:
        if (self.folder / self.module).is_dir():
            return f"imports {self.module}, a folder beside the file, which is not sent with a file alone"
        return (
            f"imports {self.module}, but there is no {self.module}.py beside the file, and no requirement of its name"
        )

    @property
    def hint(self) -> str:
        if (self.folder / self.module).is_dir():
            return f"`bench launch {self.folder.resolve()}` sends the folder, if the file in it has the folder's name"
        return f'put {self.module}.py beside it, or install the package: requirements = ["{self.module}"]'


def _absent_modules(own: Own) -> Iterator[AbsentModule]:
    """Yield each module that the workload's file, or a module beside it, cannot be imported without."""
    main = own.root / f"{own.name}.py"
    seen, pending = {main.stem}, [main]
    folders = {name.split("/")[0] for name in own.files if "/" in name}
    imported = set().union(*(imported_modules(text_of(one)) for one in own.files.values() if one.suffix == ".py"))
    while pending:
        file = pending.pop()
        for module, line in required_imports(text_of(file)):
            if module in seen or module in sys.stdlib_module_names or module in COMES_ALONG or module in folders:
                continue
            seen.add(module)
            if f"{module}.py" in own.files:
                pending.append(own.files[f"{module}.py"])
            elif not own.needs.may_provide(module, imported):
                yield AbsentModule(f"{file.name}:{line}", module, own.root, _is_installed(module))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _unsent(own: Own, path: Path) -> Iterator[str]:
    """Yield a note about the files of a workload's folder that are not sent, if there are any. Hidden files and what
    Python writes by itself are not counted."""
    sent = set(own.files.values())
    names: dict[str, None] = {}
    if own.form == "flashinfer":
        return
    if own.form == "file" and not path.is_dir():
        names = {name: None for name in strings(text_of(path)) if _is_beside(own.root, name) not in (None, *sent)}
        if names:
            yield f"not sent, though the file names them: {', '.join(islice(names, LISTED))}"
        return
    for file in sorted(own.root.rglob("*")):
        below = file.relative_to(own.root)
        if file.is_dir() or file in sent or any(part.startswith(".") or part in UNCOUNTED for part in below.parts):
            continue
        skipped = next((part for part in below.parts[:-1] if part in SKIPPED), None)
        names[f"{skipped}/" if skipped else below.as_posix()] = None
    if names:
        listed = ", ".join(islice(names, LISTED))
        and_more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        yield f"not sent, because only source files outside of {', '.join(sorted(OUTPUTS))} are: {listed}{and_more}"


def _is_beside(root: Path, name: str) -> Path | None:
    """Return the file of this name in a folder; None if there is none."""
    try:
        return root / name if NAMED.fullmatch(name) and (root / name).is_file() else None
    except (OSError, ValueError):
        return None


NAMED: Final = re.compile(r"[\w ./-]*\w\.\w+")
QUOTED: Final = re.compile(rf"['\"](?!/)({NAMED.pattern})['\"]")


def text_of(file: Path) -> str:
    """A file's text. Raises `ConfigError`."""
    try:
        with file.open("rb") as opened:
            return read_text(opened, MOST_SOURCE)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read {file}: {os_error_text(exc)}", hint=HINT) from exc


def _begun(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(MOST_SOURCE)


def gather_files(path: Path) -> dict[str, bytes]:
    """What goes into the payload, by its name there: one file, or a folder's files; of a file alone also the sources
    beside it that it names. Raises `ConfigError` and `LocalError`."""
    workload = with_wheels(read_workload(path))
    gathered: dict[str, bytes] = {}
    total = 0
    for name, one in workload.files.items():
        if SECRET_NAMES.fullmatch(one.name):
            raise ConfigError(
                f"{one}: looks like a secret, so nothing is sent", hint="move it out of the workload's folder"
            )
        try:
            total += one.stat().st_size
            if total > MOST_BYTES or len(gathered) >= MOST_FILES:
                limit = f"{MOST_BYTES >> 20} MB and {MOST_FILES} files"
                raise ConfigError(
                    f"{workload.root}: more than {limit} (at {name})", hint="keep data out of the workload's folder"
                )
            data = one.read_bytes()
        except OSError as exc:
            raise LocalError(f"cannot read {one}: {exc.strerror}", hint="check the rights of that file") from exc
        secret = SECRET_TEXT.search(data)
        if secret:
            line = data.count(b"\n", 0, secret.start()) + 1
            raise ConfigError(
                f"{one}:{line}: holds what looks like a secret, so nothing is sent", hint="remove it from the file"
            )
        gathered[f"{FOLDER}/{name}"] = data
    if workload.description is not None:
        gathered[f"{FOLDER}.json"] = json.dumps(workload.description, indent=1).encode()
    if workload.needs.anything:
        gathered[OBJECT] = json.dumps(workload.needs.as_json(), indent=1, sort_keys=True).encode()
    return gathered


def with_wheels(own: Own) -> Own:
    """The workload with the wheels that it needs among its files, and with what a `requirements.txt` asks for where its
    form has no other place for that. Raises `ConfigError`."""
    listed = own.root / REQUIREMENTS
    needs = own.needs
    if own.form in ("gpumode", "kernelbench", "flashinfer") and listed.is_file():
        lines = [line.split(" #")[0].strip() for line in text_of(listed).splitlines()]
        asked = {"requirements": [line for line in lines if line and not line.startswith("#")]}
        needs = needs_of(asked, lambda words, _: ConfigError(f"{listed.name}: {words}", hint=HINT))
    missing = [one for one in needs.wheels if not (own.root / one).is_file()]
    if missing:
        raise ConfigError(f"requirements: there is no {missing[0]} beside {own.name}", hint=f"put it into {own.root}")
    wheels = {one: own.root / one for one in needs.wheels}
    return replace(own, files={**own.files, **wheels}, needs=needs)


def _below(root: Path, types: frozenset[str] = TYPES) -> dict[str, Path]:
    return {one.relative_to(root).as_posix(): one for one in _files(root, types)}


def _files(root: Path, types: frozenset[str]) -> Iterator[Path]:
    for path in sorted(root.rglob("*"), key=lambda one: one.relative_to(root).as_posix()):
        below = path.relative_to(root).parts[:-1]
        if any(part in SKIPPED or part.startswith(".") for part in below) or path.is_symlink() or not path.is_file():
            continue
        if SECRET_NAMES.fullmatch(path.name) or path.suffix in types or path.name in MAKEFILES:
            yield path


def _named(file: Path, entries: Sequence[Path]) -> Iterator[Path]:
    """Sources beside a file or its CUDA `entries` that it quotes, CUDA headers, modules that it imports; no secrets."""
    yield from entries
    for folder in dict.fromkeys([file.parent, *(one.parent for one in entries)]):
        for one in (_is_beside(folder, name) for name in QUOTED.findall(text_of(file))):
            if one and ".." not in one.parts and one.suffix in TYPES and not SECRET_NAMES.fullmatch(one.name):
                yield one
        yield from sorted(folder.glob("*.cuh"))
    modules, pending = {file}, [file]
    while pending:
        for name in imported_modules(text_of(pending.pop())):
            module = file.parent / f"{name}.py"
            if module not in modules and module.is_file() and not module.is_symlink():
                modules.add(module)
                pending.append(module)
                yield module
