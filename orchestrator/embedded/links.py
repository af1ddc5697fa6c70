"""Names of resources, as Compute Engine spells them."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

API = "https://www.googleapis.com/compute/v1/"


def link(*parts: str) -> str:
    """The selfLink of a path; always at Google's own address, as the clients expect."""
    return API + "/".join(parts)


def last(url: str) -> str:
    """The name at the end of a full or partial URL."""
    return url.rpartition("/")[2]


def fingerprint(document: Any) -> str:
    """Eight bytes that change with the document, in base64."""
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()
