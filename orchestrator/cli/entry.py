"""What is installed as `bench`. All that it takes is loaded within it: Ctrl-C is no traceback, however early."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    try:
        importlib.import_module("orchestrator.cli.app").main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
