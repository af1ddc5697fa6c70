"""Colours, light and dark; looks of implementations; and the style of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.bundled import IMPLEMENTATIONS

# Colours that everybody can tell apart, on white and on black. Each also has a shape, so that nothing depends on
# colour alone.


LIGHT: Final = {
    "ink": "#1b1f24", "soft": "#57606a", "line": "#d0d7de", "paper": "#ffffff", "band": "#eef1f4", "cue": "#8c959f66",
    "c0": "#0b62a8", "c1": "#c24a00", "c2": "#00795a", "c3": "#a3427f", "c4": "#8a6400", "c5": "#5b5f66",
    "c6": "#6a3fb5", "c7": "#00707f",
    "good": "#00795a", "bad": "#b3260a",
}  # fmt: skip
DARK: Final = {
    "ink": "#e6edf3", "soft": "#9aa5b1", "line": "#3a424c", "paper": "#0f1318", "band": "#1d242c", "cue": "#9aa5b166",
    "c0": "#6cb6ff", "c1": "#ff9a5c", "c2": "#4fd1a5", "c3": "#f0a0d0", "c4": "#e6c35c", "c5": "#b4bcc6",
    "c6": "#b9a1ff", "c7": "#5fd0e0",
    "good": "#4fd1a5", "bad": "#ff8f73",
}  # fmt: skip
"""Based on Okabe and Ito's colours, which colour-blind readers can tell apart. They are darkened or lightened to a
contrast of 4.5:1 with the background."""

KNOWN: Final[tuple[str, ...]] = IMPLEMENTATIONS
SHAPES: Final = ("circle", "square", "triangle", "diamond", "cross", "ring", "wedge", "plus")
MANY: Final = len(SHAPES)
"""The number of looks that differ from each other."""


@dataclass(frozen=True, slots=True)
class Look:
    """How an implementation is drawn in every figure: the CSS class of a colour, and a shape."""

    colour: str
    shape: str


def assign_looks(implementations: Sequence[str]) -> Mapping[str, Look]:
    """The look of each implementation. Known ones always have the same look. Others get the remaining looks in order;
    when none is left they share looks, but never that of the first implementation."""
    known_looks = {
        name: Look(f"c{KNOWN.index(name)}", SHAPES[KNOWN.index(name)]) for name in implementations if name in KNOWN
    }
    free = [number for number in range(MANY) if f"c{number}" not in {look.colour for look in known_looks.values()}]
    for place, name in enumerate(name for name in implementations if name not in KNOWN):
        number = free[place] if place < len(free) else 1 + (place - len(free)) % (MANY - 1)
        known_looks[name] = Look(f"c{number}", SHAPES[number])
    return known_looks


def css_variables(colours: Mapping[str, str]) -> str:
    """The colours as CSS custom properties."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


FIGURE_CSS: Final = (
    "text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:var(--ink)}"
    ".soft{fill:var(--soft)}.end{text-anchor:end}.middle{text-anchor:middle}.strong{font-weight:600}"
    ".grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1.25}.band{fill:var(--band)}"
    ".noise{fill:var(--soft);fill-opacity:.22}"
    ".roof{stroke:var(--ink);stroke-width:2;fill:none}.paper{fill:var(--paper)}"
    + "".join(
        f".c{n}{{fill:var(--c{n});stroke:var(--c{n})}}.l{n}{{stroke:var(--c{n});stroke-width:2;fill:none}}"
        f".b{n}{{fill:var(--c{n});fill-opacity:.28;stroke:var(--c{n})}}.o{n}{{stroke:var(--c{n});stroke-width:2;fill:var(--paper)}}"
        for n in range(MANY)
    )
    + ".split{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 4}"
    ".dot{stroke-width:2.6;stroke-linecap:round;stroke-opacity:.5}"
)


def inline_colours(css: str, colours: Mapping[str, str]) -> str:
    """`css` with its colour variables replaced by colours, for a separate file."""
    for name, value in colours.items():
        css = css.replace(f"var(--{name})", value)
    return css
