"""Whose credentials are in use, as far as they tell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """`member` is an IAM member such as `user:ada@example.com`; empty where the kind does not tell."""

    kind: str
    member: str = ""
