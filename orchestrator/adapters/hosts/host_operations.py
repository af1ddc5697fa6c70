"""What is run on a machine of the user's own for each operation, and what its answer or its silence means.

One programme, `startup/host/remote_ops.py` with the modules it imports, is handed to the python there as text; over
SSH and on this machine alike.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.adapters.payload import bundle_root
from orchestrator.core.errors import HostUnfit
from orchestrator.core.hosts import OLDEST_PYTHON, HostTarget, python_too_old

NO_PYTHON, OLD_PYTHON = 97, 98
ANSWER: Final = "@@spotbench@@"
MODULES: Final = ("paths", "processes", "machine", "runs", "remote_ops")
"""Those of `startup/host/` that are sent, each after what it imports; the last is the programme."""
SCRIPT: Final = (
    'p=$0; case "$p" in "~/"*) p="$HOME/${p#"~/"}";; esac; '
    f'command -v "$p" >/dev/null 2>&1 || exit {NO_PYTHON}; BENCH_INTERPRETER=$(command -v "$p"); '
    'export BENCH_INTERPRETER; exec "$p" -B -c "$@"'
)
"""What the shell there does: finds the interpreter, or says that there is none. -B: nothing is written beside it."""
MOST_BYTES: Final = 32 << 20
"""Of what one command says: the names of all files that a run may have stored are a quarter of it."""


class Endless(Exception):
    """A command has said more than `MOST_BYTES`, and may go on."""


@functools.cache
def packed_programme() -> str:
    """The programme that is sent, packed: read once, small enough for a command line, and free of quotes."""
    folder = bundle_root() / "startup" / "host"
    texts = [(name, (folder / f"{name}.py").read_text(encoding="utf-8")) for name in MODULES]
    packed = base64.b64encode(zlib.compress(json.dumps(texts).encode(), 9)).decode()
    # Old interpreters fail at the first line of newer syntax: asked first, and answered in any python.
    return (
        "import sys,zlib,base64,json,types\n"
        f"if sys.version_info<(3,8):sys.stdout.write('python %d.%d.%d'%sys.version_info[:3]);sys.exit({OLD_PYTHON})\n"
        "sys.argv[2]=zlib.decompress(base64.b64decode(sys.argv[2])).decode()\n"
        f"for n,t in json.loads(zlib.decompress(base64.b64decode('{packed}')).decode()):\n"
        "  m=types.ModuleType('startup.host.'+n);sys.modules[m.__name__]=m\n"
        "  exec(compile(t,'startup/host/'+n+'.py','exec'),globals() if n=='remote_ops' else m.__dict__)\n"
    )


def build_command(operation: str, arguments: Mapping[str, Any], python: str) -> list[str]:
    """The argument list that has `operation` done by `python` (empty: `python3`)."""
    packed = base64.b64encode(zlib.compress(json.dumps(arguments).encode(), 9)).decode()
    return ["sh", "-c", SCRIPT, python or "python3", packed_programme(), operation, packed]


OUTPUT_MARK: Final = "spotbench-output-begins"


def in_sh(line: str) -> str:
    """The command line that has `sh` run `line`, whatever shell the login has: one line, without a character that
    csh or fish read in another way between single quotes."""
    encoded = re.sub(r"[\n!'\"$`\\%]", lambda found: f"\\0{ord(found[0]):03o}", line)
    return f'sh -c \'eval "$(printf %b "{encoded}")"\''


def answer_in(out: str, target: HostTarget) -> Mapping[str, Any] | None:
    """The operation's answer among what was printed; None when there is none. Raises `HostUnfit`."""
    for line in reversed(out.splitlines()):
        if line.startswith(ANSWER):
            return _object(target, line.removeprefix(ANSWER))
    return None


def _object(target: HostTarget, text: str) -> Mapping[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise HostUnfit(
            f"{target} gave an answer that bench does not know",
            hint=f"`bench doctor --host {target}` checks that machine",
        )
    return answer


def said_too_much(target: HostTarget, when: str) -> HostUnfit:
    """`when` completes "while it was …"."""
    return HostUnfit(
        f"{target.called} printed more than {MOST_BYTES >> 20} MB while it was {when}, so bench stopped reading",
        hint=f"{target.entry}check what a login prints on {target.called}, and what its python3 prints",
    )


def no_answer(target: HostTarget, code: int, out: str, err: str, python: str) -> HostUnfit:
    """What it means that the shell there ended with `code` and without an answer."""
    if code == NO_PYTHON:
        return HostUnfit(
            f"{target.called} has no {python} on the PATH of a login",
            hint=f"on {target.called}: sudo apt-get install python3; or --set host.python=/path/to/python3",
        )
    if code == OLD_PYTHON:
        lack = python_too_old(target.called, out.rpartition("python ")[2] or f"below {OLDEST_PYTHON}")
        return HostUnfit(lack.what, hint=lack.remedy)
    output_lines = (err or out).splitlines()
    what = f": {output_lines[-1][:200]}" if output_lines else ""
    if target.machine:
        return HostUnfit(
            f"{python} on this machine does not run (exit code {code}){what}",
            hint=f"`{python} --version` must print a version; or --set host.python=/path/to/python3",
        )
    return HostUnfit(
        f"{target} accepts the login but does not run commands (exit code {code}){what}",
        hint=f"`ssh {target.name} python3 --version` must print a version",
    )
