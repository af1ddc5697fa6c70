"""The paths of a site's pages and the links between them. Links are relative, so that a folder of pages can be
moved."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from orchestrator.report.page import Link

INDEX: Final = "index.html"
CASES: Final = "cases/index.html"
GPUS: Final = "gpus.html"
COSTS: Final = "costs.html"
TOP: Final = (("Runs", INDEX), ("Cases", CASES), ("GPUs", GPUS), ("Costs", COSTS))
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def run_page(run_id: str) -> str:
    """The path of a run's page. Run ids are safe in paths, as they were checked
    (`orchestrator.core.naming.is_run_id`)."""
    return f"runs/{run_id}.html"


def case_page(case_id: str) -> str:
    """The path of a case's page. A case may have any name; one that is not plain gets a digest in its path."""
    return f"cases/{slug(case_id)}.html"


def slug(text: str) -> str:
    """A name for a file or for an anchor. Two different texts never get the same name."""
    if _PLAIN.fullmatch(text) and text.lower() not in ("index", "con", "nul", "aux", "prn") and text == text.lower():
        return text
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
    return f"{plain or 'x'}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:10]}"


def to(path: str, page: str) -> str:
    """The relative link from `page` to `path`, which are both paths from the top of the site."""
    return "../" * page.count("/") + path


def nav(page: str) -> tuple[Link, ...]:
    """The links at the top of every page."""
    return tuple(Link(name, to(path, page), here=path == page) for name, path in TOP)
