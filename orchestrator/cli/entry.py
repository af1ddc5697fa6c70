"""What is installed as `bench`. All imports are inside the function, so that an early Ctrl-C gives no traceback."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    try:
        importlib.import_module("orchestrator.cli.app").main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
