"""Sessions: one machine stays warm and judges version after version of a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import TracebackType

from orchestrator.api.sessions import SessionDesk, VersionLine
from spotbench.money import Dollars, own_words
from spotbench.runs import Say, Settings, wire_options


@dataclass(frozen=True, slots=True)
class Version:
    """What a session says of one version: its fastest kernel against the fastest baseline, over all cases. `verdict` is
    `faster`, `slower`, `same`, `inconclusive`, `timed` (no baseline), `wrong`, `unreadable`, `refused` or `lost`;
    `reason` says why it is one of the last four. `ratio` is the baseline's time over the kernel's, with its 95 %
    interval; each is None where it was not measured."""

    number: int
    verdict: str
    kernel: str
    baseline: str
    time_us: float | None
    ratio: float | None
    low: float | None
    high: float | None
    reason: str
    seconds: float


class Session:
    """A session. As a context manager it gives its machine back at the end of the block."""

    def __init__(self, desk: SessionDesk) -> None:
        self._desk = desk
        self._config, self._name, self._base = desk.read()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    @property
    def id(self) -> str:
        """Its id, which is that of a run; empty until the first version is measured."""
        return "" if self._desk.live is None else self._desk.live.id

    @property
    def cost_usd(self) -> Dollars:
        """What its machines have cost until now."""
        return Dollars(self._desk.cost_usd)

    @property
    def versions(self) -> tuple[Version, ...]:
        """Every version so far."""
        return tuple(map(_version, self._desk.lines))

    @property
    def best(self) -> Version | None:
        """The version with the best ratio. It is the luckiest of many too: measure it again before you publish it."""
        return None if self._desk.best is None else _version(self._desk.best)

    def measure(self, source: str | Path = "") -> Version:
        """Judge and time one version: the source text of the workload's file, another file, or the workload's own files
        as they are now. Nothing about a version is an exception: a wrong or hanging kernel, one that does not parse,
        and one for which money or time does not suffice have a verdict with the reason."""
        if not source:
            return _version(self._desk.measure())
        text = source.read_bytes() if isinstance(source, Path) else source.encode()
        candidate = self._desk.parse_source(self._base, text)
        return _version(self._desk.measure_candidate(self._config, self._name, candidate))

    def close(self) -> None:
        """Give the machine back and settle the cost. A later version begins a new session."""
        self._desk.close()
        self._desk.live = None


@own_words()
def session(
    workload: str | Path, *, gpu: str = "", max_usd: float | str | Decimal | None = None, host: str = "",
    settings: Settings | None = None, idle_minutes: float = 10, say: Say | None = None,
) -> Session:  # fmt: skip
    """A session for a workload of your own. Its machine is held and rented when the first version is measured, and
    given back after `idle_minutes` without one. The other parameters are those of `launch`."""
    wiring, options = wire_options(workload, gpu, max_usd, host, settings, say)
    return Session(SessionDesk(wiring, options, 60 * idle_minutes))


def _version(line: VersionLine) -> Version:
    ratio = line.ratio
    low, mid, high = (None, None, None) if ratio is None else (ratio.low, ratio.mid, ratio.high)
    return Version(
        line.version, line.verdict, line.kernel, line.baseline, line.time_us, mid, low, high, line.reason, line.seconds
    )
