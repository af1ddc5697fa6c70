"""Modules that are loaded when something of theirs is first named, so that a command waits for what it needs alone."""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """Stands for the module of that name until an attribute of it is asked for. Errors of its import come then."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self._name), name)
        setattr(self, name, found)
        return found
