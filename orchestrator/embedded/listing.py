"""The common parts of Compute Engine's list methods: filter, order, pages, and lists over all zones."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from orchestrator.embedded.errors import ApiError, Document, invalid, not_found
from orchestrator.embedded.filters import parse_filter
from orchestrator.embedded.links import link

MOST = 500


def page(items: list[Document], query: Mapping[str, str]) -> tuple[list[Document], str]:
    """(items of the requested page, token of the next page). The token is empty on the last page. Raises `ApiError`
    (400) for invalid parameters."""
    passes = parse_filter(query.get("filter", ""))
    chosen = ordered([item for item in items if passes(item)], query.get("orderBy", ""))
    try:
        size = int(query.get("maxResults", MOST))
        start = int(base64.urlsafe_b64decode(query.get("pageToken", "") or "MA==").decode())
    except ValueError as exc:
        raise ApiError(400, "Invalid value for maxResults or pageToken.") from exc
    if not 0 <= size <= MOST:
        raise invalid("maxResults", size, f"Must be between 0 and {MOST}")
    end = start + (size or MOST)
    token = base64.urlsafe_b64encode(str(end).encode()).decode() if end < len(chosen) else ""
    return chosen[start:end], token


def named(items: list[Document], path: str) -> Document:
    """The item whose name is at the end of the path. Raises the API's 404 if there is none."""
    for item in items:
        if item["name"] == path.rpartition("/")[2]:
            return item
    raise not_found(path)


def ordered(items: list[Document], order: str) -> list[Document]:
    """The items sorted by name, or by creation, newest first. Raises `ApiError` (400) for another order."""
    if order in ("", "name"):
        return sorted(items, key=lambda item: str(item["name"]))
    if order == "creationTimestamp desc":
        moments = lambda item: str(item.get("creationTimestamp", item.get("insertTime", "")))  # noqa: E731
        return sorted(items, key=moments, reverse=True)
    raise invalid("orderBy", order, "Only name and creationTimestamp desc are supported")


def listing(kind: str, path: str, items: list[Document], query: Mapping[str, str]) -> Document:
    """A list response. `kind` is such as `compute#instanceList`."""
    chosen, token = page(items, query)
    answer: Document = {"kind": kind, "id": path, "selfLink": link(path)}
    if chosen:
        answer["items"] = chosen
    if token:
        answer["nextPageToken"] = token
    return answer


def aggregated(
    kind: str,
    path: str,
    key: str,
    scopes: Mapping[str, list[Document]],
    query: Mapping[str, str],
    *,
    level: str = "zones",
) -> Document:
    """A list response over zones or regions. A zone or region without items has a warning instead."""
    places = {id(item): zone for zone, items in scopes.items() for item in items}
    everything = [item for items in scopes.values() for item in items]
    chosen, token = page(everything, query)
    by_scope: dict[str, Document] = {}
    for zone in scopes:
        of_zone = [item for item in chosen if places[id(item)] == zone]
        if of_zone:
            by_scope[f"{level}/{zone}"] = {key: of_zone}
        else:
            by_scope[f"{level}/{zone}"] = {
                "warning": {
                    "code": "NO_RESULTS_ON_PAGE",
                    "message": f"There are no results for scope '{level}/{zone}' on this page.",
                    "data": [{"key": "scope", "value": f"{level}/{zone}"}],
                }
            }
    answer: Document = {"kind": kind, "id": path, "selfLink": link(path), "items": by_scope}
    if token:
        answer["nextPageToken"] = token
    return answer
