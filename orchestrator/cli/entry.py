"""What is installed as `bench`. Other imports are inside the function: an early Ctrl-C gives no traceback."""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # `typing` is one of the imports that take their time
if TYPE_CHECKING:
    from types import ModuleType


def main() -> None:
    try:
        _run(importlib.import_module("signal"))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


def _run(signal: ModuleType) -> None:
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have had it ignored
            importlib.import_module("orchestrator.cli.interrupts").listen()
        importlib.import_module("orchestrator.cli.app").main()
    finally:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing catches Ctrl-C while Python ends
