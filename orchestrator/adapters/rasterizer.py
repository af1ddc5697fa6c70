"""SVG to what papers take. PNG and PDF need the extra `figures`; SVG needs nothing."""

from __future__ import annotations

from orchestrator.core.errors import LocalError

DOTS_PER_POINT = 2.0
"""PNGs at twice the size they are shown at."""


def converted(svg: str, kind: str) -> bytes:
    """The figure as `svg`, `png` or `pdf`. Raises `LocalError` where the extra or its library is absent."""
    if kind == "svg":
        return svg.encode()
    try:
        import cairosvg
    except (ImportError, OSError) as exc:
        raise LocalError(
            f"{kind.upper()} figures cannot be drawn here: {exc}",
            hint="pip install cairosvg, and install libcairo2; SVG figures need neither",
        ) from exc
    drawn: bytes
    if kind == "png":
        drawn = cairosvg.svg2png(svg.encode(), scale=DOTS_PER_POINT, background_color="white")
    else:
        drawn = cairosvg.svg2pdf(svg.encode())
    return drawn
