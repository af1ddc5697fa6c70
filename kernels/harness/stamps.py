"""Times as the result files and facts write them."""

from __future__ import annotations

import time


def utc_now() -> str:
    """UTC, ISO 8601, with microseconds and a Z."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds // 1000:06d}Z"
