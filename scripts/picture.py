"""The picture of the README: the answer of a published run, as `bench launch` and `bench fetch` draw it in a terminal.

python scripts/picture.py results/FOLDER docs/pictures/answer.svg
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from orchestrator.api.results import read_report
from orchestrator.cli.fetch import Answer

COLUMNS = 118


def picture(folder: Path) -> str:
    """An SVG that loads nothing from elsewhere. The line that says where the report is on this disk is left out."""
    console = Console(width=COLUMNS, record=True, force_terminal=True, file=io.StringIO())
    console.print(Answer(folder.name, "succeeded", read_report(folder)))
    drawn = console.export_svg(title="bench", unique_id="answer")
    drawn = re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL)
    fonts = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    lines = drawn.replace("Fira Code, monospace", fonts).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main() -> None:
    folder, out = map(Path, sys.argv[1:])
    out.write_text(picture(folder), encoding="utf-8")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
