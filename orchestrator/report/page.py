"""What every page of ours is made of: its style, its frame, tables and figures. Nothing is fetched, nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from orchestrator.report.palette import DARK, FIGURE_CSS, LIGHT, variables
from orchestrator.report.svg import Board

CSS = f"""
:root{{color-scheme:light dark;{variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}
@media print{{:root{{color-scheme:light;{variables(LIGHT)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:66rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}}
h1{{font-size:1.7rem;line-height:1.2;margin:.2rem 0 .4rem}}h2{{font-size:1.25rem;margin:2.4rem 0 .4rem}}
h3{{font-size:1.05rem;margin:1.6rem 0 .3rem}}
.setting{{border-left:.25rem solid var(--line);padding:.1rem .9rem;margin:.9rem 0}}.setting h3{{margin:.1rem 0}}
p{{margin:.4rem 0;max-width:46rem}}.lead{{font-size:1.1rem}}.soft,figcaption,caption{{color:var(--soft)}}
.warn{{border-left:.25rem solid var(--bad);padding:.3rem .8rem;margin:.6rem 0;background:var(--band)}}
figure{{margin:.6rem 0}}.wide{{overflow-x:auto}}svg{{display:block;min-width:43rem;width:100%;height:auto}}
figcaption,caption{{font-size:.9rem;text-align:left;max-width:46rem}}
table{{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;width:100%}}
th,td{{padding:.28rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}}
th{{font-weight:600;border-bottom:1.5px solid var(--soft)}}th:first-child,td:first-child{{text-align:left}}
td.left,th.left,th.wrap{{text-align:left}}td.wrap{{white-space:normal;overflow-wrap:anywhere;text-align:left}}
th.group{{text-align:center;border-bottom:1px solid var(--line)}}
.faster{{color:var(--good);font-weight:600}}.slower{{color:var(--bad);font-weight:600}}
{FIGURE_CSS}
@media print{{body{{max-width:none;padding:0;font-size:10pt}}figure,tr{{break-inside:avoid}}h2,h3{{break-after:avoid}}
.wide{{overflow:visible}}svg{{min-width:0}}table{{font-size:7.5pt}}
th,td{{padding:.12rem .22rem;white-space:normal}}}}
@page{{margin:10mm}}
""".replace("\n", "")


def framed(title: str, body: Iterable[str]) -> str:
    """A whole file. `body` is HTML already."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        # A browser asks for an icon where none is named; an empty one is asked of nobody.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def figure(title: str, board: Board | None, caption: str, *, level: int = 2) -> str:
    """A figure under its heading; nothing where there is none."""
    if board is None:
        return ""
    head = f"<h{level}>{escape(title)}</h{level}>"
    return f'{head}<figure><div class="wide">{board.svg()}</div><figcaption>{escape(caption)}</figcaption></figure>'


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Sequence[int] = (),
    wrap: Sequence[int] = (),
    groups: Sequence[tuple[str, int]] = (),
) -> str:
    """Cells are HTML already. Columns in `left` are words, the first always is; those in `wrap` are long ones. `groups`
    stand above the heads: what they say, and over how many columns."""
    mark = [' class="wrap"' if n in wrap else ' class="left"' if n in left else "" for n in range(len(heads))]
    above = "".join(f'<th scope="colgroup" class="group" colspan="{n}">{escape(name)}</th>' for name, n in groups)
    head = f"<tr>{above}</tr>" if groups else ""
    names = "".join(f'<th scope="col"{m}>{escape(name)}</th>' for name, m in zip(heads, mark, strict=True))
    head += f"<tr>{names}</tr>"
    body = "".join(
        "<tr>" + "".join(f"<td{m}>{cell}</td>" for cell, m in zip(row, mark, strict=True)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'


def word(verdict: str) -> str:
    """A verdict in its colour."""
    return f'<span class="{escape(verdict)}">{escape(verdict)}</span>'
