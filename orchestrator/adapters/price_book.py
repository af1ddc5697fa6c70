"""The price tables: the one that comes with the tool, and the one that was made of the Cloud Billing Catalog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from orchestrator.adapters.files import write_atomically
from orchestrator.core.errors import BenchError, LocalError, ProviderError
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.market.skus import NotRefreshed, Refreshed, SkuCatalogue, refresh_prices
from orchestrator.core.text import os_error_text, read_text

HEAD: Final = """# Written by `bench prices --refresh`. Of this table and the one that comes with bench
# the newer is used; remove this file to go back to that one.
"""


@dataclass(frozen=True, slots=True)
class PriceBook:
    """`shipped` is the file of the table that comes with the tool; `path` is where the refreshed one is kept; `ask`
    reads the cloud's catalogue and says whose it is."""

    shipped: Path
    path: Path
    ask: Callable[[], tuple[SkuCatalogue, str]]

    def bundled(self) -> PriceSheet:
        return PriceSheet.parse(self.shipped.read_text(encoding="utf-8"), source=self.shipped.name)

    def current(self) -> PriceSheet:
        """The newer of the two. Raises `ConfigError` or `LocalError` for a refreshed one that cannot be used."""
        bundled, refreshed = self.bundled(), stored_sheet(self.path)
        return refreshed if refreshed is not None and refreshed.as_of >= bundled.as_of else bundled

    def usable(self) -> PriceSheet:
        """The same for commands that must go on: the bundled one where the other cannot be used."""
        try:
            return self.current()
        except BenchError:
            return self.bundled()

    def refresh(self, now: datetime, *, leave_out: bool) -> Refreshed:
        """Makes a table of the catalogue and keeps it, or raises a `ProviderError` and leaves the old one."""
        old = self.usable()
        skus, whose = self.ask()
        made = refresh_prices(old, skus, now=now, whose=whose, leave_out=leave_out)
        if isinstance(made, NotRefreshed):
            first, others_count = "; ".join(made.problems[:3]), max(0, len(made.problems) - 3)
            and_others = f"; and {others_count} more" if others_count else ""
            text = f"no price table can be made from the catalogue: {first}{and_others}"
            raise ProviderError(text, hint="bench prices --refresh --leave-out")
        store_sheet(self.path, made.sheet)
        return made


def store_sheet(path: Path, sheet: PriceSheet) -> None:
    """Writes a table whole, or leaves what is there. Raises `LocalError`."""
    write_atomically(path, (HEAD + sheet.dump_yaml()).encode(), durable=True)


def stored_sheet(path: Path) -> PriceSheet | None:
    """The table there, or None. Raises `ConfigError` or `LocalError` for one that cannot be used."""
    try:
        with path.open("rb") as file:
            text = read_text(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise LocalError(f"cannot read {path}: {os_error_text(exc)}", hint=f"rm {path}") from exc
    return PriceSheet.parse(text, source=str(path))
