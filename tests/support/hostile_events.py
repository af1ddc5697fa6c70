"""Events that a machine may write in its own name, with hostile values: a grammar over all facts."""

from __future__ import annotations

import json
import random
from datetime import datetime
from typing import Any, Final

from orchestrator.core.run import events as ev

OWN_KINDS: Final = tuple(sorted(kind for kind, fact in ev.FACTS.items() if not issubclass(fact, ev.ClientFact)))
"""The kinds of facts of which a machine's word counts, or is looked at as a claim."""
TEXTS: Final = (
    "[/x]", "[bold", "[link=http://127.0.0.1:9/x]y[/link]", "\x1b[2J\x1b]0;x\x07", "\u202eevil", "a\r\nb", "W" * 10_000,
    "=1+1", "../../x", "a/b", "--ssh-flag=-oProxyCommand=touch x", "me@evil:22", "$(touch x)", "", "\u2028", "界" * 150,
)  # fmt: skip
NUMBERS: Final = (10**30, -1, 0, 1e308, 2**63, 0.5, 1)
TIMES: Final = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2190-01-01T00:00:00Z", "2026-11-21T04:05:06Z")
OTHERS: Final[tuple[Any, ...]] = (None, True, [], {}, [None], "NaN", "Infinity", "1e400")


def hostile_data(kind: str, dice: random.Random, known: dict[str, Any]) -> dict[str, Any]:
    """Data of such a fact. Each value has the form that the fact asks for, a hostile one of that form, or another form
    altogether; `known` has values that are true, by the name of the field."""
    schema = ev.FACTS[kind].model_json_schema()
    data: dict[str, Any] = {}
    for name, field in schema.get("properties", {}).items():
        pick = dice.random()
        if name in known and pick < 0.6:
            data[name] = dice.choice(known[name]) if isinstance(known[name], tuple) else known[name]
        elif pick < 0.9:
            data[name] = _value(field, schema.get("$defs", {}), dice)
        elif pick < 0.97:
            data[name] = dice.choice((*OTHERS, *TEXTS, *NUMBERS))
    return data


def _value(field: dict[str, Any], defs: dict[str, Any], dice: random.Random) -> Any:
    """A hostile value of the form that a JSON schema asks for."""
    if "$ref" in field:
        return _value(defs[field["$ref"].rpartition("/")[2]], defs, dice)
    if "enum" in field:
        return dice.choice(field["enum"])
    if "const" in field:
        return field["const"]
    if options := field.get("anyOf"):
        return _value(dice.choice(options), defs, dice)
    match field.get("type"):
        case "string":
            return dice.choice(TIMES if field.get("format") == "date-time" else TEXTS)
        case "integer" | "number":
            return dice.choice(NUMBERS)
        case "boolean":
            return dice.choice((True, False))
        case "array":
            return [_value(field.get("items", {}), defs, dice) for _ in range(dice.choice((0, 1, 3)))]
        case "object":
            inner = field.get("additionalProperties")
            made = {name: _value(one, defs, dice) for name, one in field.get("properties", {}).items()}
            return made | ({dice.choice(TEXTS): _value(inner, defs, dice)} if isinstance(inner, dict) else {})
    return dice.choice(OTHERS)


def hostile_event(
    run: str, at: datetime, dice: random.Random, known: dict[str, Any], *, attempt: int = 1, kind: str = ""
) -> tuple[str, bytes]:
    """The name and the content of an event of the machine of an attempt, as its account may store it."""
    kind, writer, seq = kind or dice.choice(OWN_KINDS), f"vm-{attempt}-deadbeef", dice.randint(100, 99_999)
    event = {
        "schema": 1, "run_id": run, "kind": kind, "time": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", "writer": writer, "seq": seq,
        "data": hostile_data(kind, dice, known),
    }  # fmt: skip
    return f"runs/{run}/events/{at:%Y%m%dT%H%M%S.%fZ}-{writer}-{seq:06d}-{kind}.json", json.dumps(event).encode()
