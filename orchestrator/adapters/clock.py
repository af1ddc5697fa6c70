"""The clock on the wall."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """Implements `orchestrator.ports.Clock`."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))
