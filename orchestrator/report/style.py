"""Colours, looks of implementations, and the style sheet of all pages: light, dark and printed."""

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


CSS = f"""
:root{{color-scheme:light dark;{css_variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{css_variables(DARK)}}}}}
@media print{{:root{{color-scheme:light;{css_variables(LIGHT)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:74rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}}
h1{{font-size:1.7rem;line-height:1.2;margin:.2rem 0 .4rem}}h2{{font-size:1.25rem;margin:2.4rem 0 .4rem}}
h3{{font-size:1.05rem;margin:1.6rem 0 .3rem}}a{{color:inherit}}
nav ul{{list-style:none;padding:0;margin:1rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}}
.setting{{border-left:.25rem solid var(--line);padding:.1rem .9rem;margin:.9rem 0}}.setting h3{{margin:.1rem 0}}
p{{margin:.4rem 0;max-width:52rem}}.lead{{font-size:1.1rem}}.soft,figcaption,small{{color:var(--soft)}}
.warn{{border-left:.25rem solid var(--bad);padding:.3rem .8rem;margin:.6rem 0;background:var(--band)}}
.wrong{{border-left:.25rem solid var(--bad);padding:.3rem .8rem;margin:.5rem 0;color:var(--bad);font-weight:600;
overflow-wrap:anywhere}}td .wrong{{border:0;padding:0;margin:0}}.unavailable{{color:var(--soft)}}
.note{{border-left:.25rem solid var(--line);padding:.1rem .8rem;margin:.35rem 0;max-width:none;font-size:.95rem}}
.verdict{{max-width:none;font-size:1.1rem;margin:.45rem 0;overflow-wrap:anywhere}}.badge.wrong{{margin:0;
border-color:var(--bad);background:var(--bad);color:var(--paper);padding:0 .6rem;border-left-width:1.5px}}
.kernel{{font-weight:600;font-size:1.1rem;margin:1rem 0 .2rem}}
.badge{{display:inline-block;border:1.5px solid currentColor;border-radius:1rem;padding:0 .6rem;font-weight:600;
white-space:nowrap}}.badge.soft,.badge.unavailable{{font-weight:400}}.inconclusive,.same{{color:var(--ink)}}
pre{{background:var(--band);padding:.4rem .7rem;margin:.6rem 0;font-size:.85rem}}
details{{margin:1rem 0}}summary{{cursor:pointer;font-weight:600}}
figure{{margin:.6rem 0}}figcaption{{font-size:.9rem;max-width:52rem}}
svg{{display:block;min-width:40rem;width:100%;height:auto}}
.wide+.wide{{margin-top:1.1rem}}.slim,.paper{{display:none}}
@media screen and (max-width:40rem){{.broad{{display:none}}.slim{{display:block}}.slim svg{{min-width:0}}}}
.wide{{overflow-x:auto;background:linear-gradient(90deg,var(--paper) 2rem,transparent) 0 0/3rem 100% no-repeat local,
linear-gradient(270deg,var(--paper) 2rem,transparent) 100% 0/3rem 100% no-repeat local,
linear-gradient(90deg,var(--cue),transparent) 0 0/.8rem 100% no-repeat scroll,
linear-gradient(270deg,var(--cue),transparent) 100% 0/.8rem 100% no-repeat scroll}}
.wide:focus-visible,summary:focus-visible,a:focus-visible{{outline:2px solid var(--c0);outline-offset:2px}}
table{{border-collapse:collapse;font-size:.87rem;font-variant-numeric:tabular-nums;width:100%}}
th,td{{padding:.28rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}}
th{{font-weight:600;border-bottom:1.5px solid var(--soft);vertical-align:bottom}}
th:first-child,td:first-child,.left{{text-align:left}}
td.wrap,th.wrap,td.long,th.long{{white-space:normal;text-align:left}}td small{{display:block}}
td.long{{overflow-wrap:anywhere}}
.group{{text-align:center;border-bottom:1px solid var(--line)}}
.differs{{font-weight:700}}.faster{{color:var(--good);font-weight:600}}.slower{{color:var(--bad);font-weight:600}}
{FIGURE_CSS}
@media (max-width:40rem){{table.stack thead{{display:none}}table.stack tr{{display:block;padding:.5rem 0;
border-bottom:1.5px solid var(--soft)}}table.stack td{{display:flex;justify-content:space-between;gap:1rem;
text-align:right;border:0;padding:.1rem 0;white-space:normal}}table.stack td:first-child{{font-weight:600}}
table.stack td:not(:first-child):not(:empty)::before{{content:attr(data-head);color:var(--soft);text-align:left;
flex:none;max-width:45%}}}}
@media print{{body{{max-width:none;padding:0;font-size:9.5pt;line-height:1.35}}nav,details,.screen{{display:none}}
.paper{{display:block}}figure,tr,.setting,pre,.keep{{break-inside:avoid}}
h1,h2,h3,p.soft{{break-after:avoid}}h2{{margin:1.1rem 0 .3rem}}
figcaption,.soft{{font-size:8.5pt}}.lead{{font-size:10pt}}
thead{{display:table-header-group}}.wide{{overflow:visible;background:none}}svg{{min-width:0;max-height:165mm}}
table{{font-size:7pt}}th,td{{padding:.08rem .2rem;white-space:normal}}}}
@page{{margin:10mm}}
""".replace("\n", "")

SITE_CSS = """
.skip{position:absolute;left:-99rem}
.skip:focus{left:1rem;top:.5rem;background:var(--paper);padding:.4rem .8rem;z-index:2}
.site{border-bottom:1px solid var(--line);margin-bottom:1rem}.site ul{margin:.2rem 0 .6rem;gap:.2rem .4rem}
.site a{display:inline-block;padding:.35rem .6rem;border-radius:.35rem;text-decoration:none}
.site a:hover{background:var(--band)}.site a[aria-current]{background:var(--band);font-weight:600}
ul.links{list-style:none;padding:0;margin:.6rem 0;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem}
.finder{display:flex;flex-wrap:wrap;gap:.6rem .9rem;align-items:end;margin:1rem 0 .4rem}.finder[hidden]{display:none}
.finder label{display:flex;flex-direction:column;font-size:.85rem;color:var(--soft);gap:.15rem}
.finder input,.finder select,.finder button{font:inherit;color:var(--ink);background:var(--paper);
border:1px solid var(--soft);border-radius:.35rem;padding:.35rem .5rem;min-height:2.2rem;max-width:100%}
.finder input{min-width:14rem}.finder button:hover{background:var(--band);cursor:pointer}
.finder :focus-visible,th button:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
.found{color:var(--soft);font-size:.9rem;min-height:1.5em}
th button{font:inherit;font-weight:600;color:inherit;background:none;border:0;padding:.15rem 0;cursor:pointer;
text-align:inherit;white-space:nowrap}
th button::after{content:"\\2195";display:inline-block;width:1em;text-align:center;color:var(--soft);font-weight:400}
th[aria-sort=ascending] button::after{content:"\\2191";color:inherit}
th[aria-sort=descending] button::after{content:"\\2193";color:inherit}
tr:target,section:target h2{background:var(--band)}
.running{color:var(--c0);font-weight:600}.failed{color:var(--bad);font-weight:600}
.finder label.orders{display:none}
@media (max-width:40rem){.finder label.orders{display:flex}.finder label{flex:1 1 45%}
.finder input{min-width:0;width:100%}
table.stack tr[hidden],table.stack td.minor{display:none}}
@media print{.site,.finder,.found,.skip{display:none}}
""".replace("\n", "")
