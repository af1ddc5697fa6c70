"""`google.cloud.compute_v1` without the clients of services that nobody here asks.

Its `__init__` loads the clients of all its services, about a hundred, before it gives any: more than half of the 2.4 s
of processor time that every command that rents would wait for. The modules of the services load without each other.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Final

PACKAGE: Final = "google.cloud.compute_v1"
CLIENTS: Final = {
    "instances": "InstancesClient",
    "zone_operations": "ZoneOperationsClient",
    "images": "ImagesClient",
    "instance_templates": "InstanceTemplatesClient",
    "global_operations": "GlobalOperationsClient",
}
"""The class of each service that is asked."""


def load_package() -> ModuleType:
    """The package with the clients of `CLIENTS` and all messages. Whoever asks it for anything else loads the whole."""
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {PACKAGE!r}", name=PACKAGE)
    package, loader = importlib.util.module_from_spec(spec), spec.loader
    sys.modules[PACKAGE] = package  # known by its path, and not run
    try:
        messages = importlib.import_module(f"{PACKAGE}.types.compute")
        given = {name: getattr(messages, name) for name in messages.__all__}
        for service, client in CLIENTS.items():
            given[client] = getattr(importlib.import_module(f"{PACKAGE}.services.{service}"), client)
    except BaseException:
        del sys.modules[PACKAGE]
        raise

    def load_whole(name: str) -> object:
        del vars(package)["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    vars(package).update(given, __getattr__=load_whole)
    return package


if TYPE_CHECKING:
    from google.cloud import compute_v1 as compute_v1
else:
    compute_v1 = load_package()
