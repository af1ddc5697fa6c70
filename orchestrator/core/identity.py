"""The identity behind the credentials in use, as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """The kind of the credentials, and their IAM member, such as `user:ada@example.com`; empty if it is not known."""

    kind: str
    member: str = ""
