"""A locale that lacks our characters gets others in their place, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from orchestrator.cli.app import main
sys.argv = ["bench", "--version"]
try:
    main()
finally:
    print("1.2× 3 µs ✓ … 字")
"""


@pytest.mark.parametrize(
    ("encoding", "told"),
    [("ascii", "1.2x 3 us + ... ?"), ("latin-1", "1.2× 3 µs + ... ?"), ("utf-8", "1.2× 3 µs ✓ … 字")],
)
def test_what_a_locale_cannot_show_is_written_otherwise(encoding: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.stderr.decode(encoding) == ""
    assert done.stdout.decode(encoding).splitlines()[-1] == told
