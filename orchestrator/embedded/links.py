"""The URLs and fingerprints of resources, in Compute Engine's form."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

API = "https://www.googleapis.com/compute/v1/"


def self_link(*parts: str) -> str:
    """The selfLink of a path. It has Google's own address, because clients expect that."""
    return API + "/".join(parts)


def last_name(url: str) -> str:
    """The name at the end of a full or partial URL."""
    return url.rpartition("/")[2]


def document_fingerprint(document: Any) -> str:
    """Eight bytes of a hash of the document, in base64."""
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()
