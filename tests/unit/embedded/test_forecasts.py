"""Which forecasts are taken, and what becomes of one that is replaced, saved or restored."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.embedded.weather import BadWeather, Weather
from tests.unit.embedded.weather import forecast


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ([], "faults"),
        ({}, "faults"),
        ({"faults": ["rain"]}, "fault must be one of"),
        ({"faults": [{"fault": "rain"}]}, "rain"),
        ({"faults": [{"fault": "lost", "zones": "a"}]}, "zones"),
        ({"faults": [{"fault": "http"}]}, "needs status"),
        ({"faults": [{"fault": "quota"}]}, "needs metric"),
        ({"faults": [{"fault": "stockout", "times": 0}]}, "times"),
        ({"faults": [{"fault": "stockout", "times": "often"}]}, "times"),
        ({"faults": [{"fault": "slow_boot", "seconds": -1}]}, "seconds"),
        ({"faults": [{"fault": "slow_boot", "seconds": True}]}, "seconds"),
        ({"faults": [{"fault": "http", "status": 200}]}, "status"),
        ({"faults": [{"fault": "reset", "after": "lunch"}]}, "after"),
        ({"faults": [{"fault": "reset", "service": "mail"}]}, "service"),
        ({"faults": [{"fault": "kill", "target": "client"}]}, "target"),
        ({"faults": [{"fault": "http", "status": 500, "path": "("}]}, "path"),
        ({"faults": [{"fault": "lost", "at": 3}]}, "at"),
        ({"faults": [{"fault": "lost", "at": {"phase": "build", "case": 1}}]}, "at"),
        ({"faults": [{"fault": "lost", "at": {"moon": 1}}]}, "at"),
        ({"faults": [{"fault": "lost", "at": {"seconds": "soon"}}]}, "seconds"),
        ({"faults": [{"fault": ["rain"]}]}, "fault must be one of"),
        ({"faults": [{"fault": "lost", 1: 2, "x": 3}]}, "not 1, x"),
        ({"faults": [{"fault": "http", "status": "bad"}]}, "status"),
    ],
)
def test_a_forecast_that_cannot_be_meant_is_refused_with_its_place(document: Any, word: str) -> None:
    with pytest.raises(BadWeather, match=word):
        Weather().replace(document)


def test_a_new_forecast_replaces_what_waits_and_keeps_what_has_happened() -> None:
    weather = Weather()
    weather.replace(forecast({"fault": "stockout", "times": 3, "note": "for the docs"}))
    assert weather.take("vm", lambda fault: True) is not None
    weather.replace(forecast({"fault": "never_boots"}))
    listed = weather.document()["faults"]
    assert [(fault["fault"], fault["times"], fault["fired"]) for fault in listed] == [
        ("stockout", 1, 1),
        ("never_boots", 1, 0),
    ]
    assert [fault.kind for fault in weather.pending] == ["never_boots"]


def test_weather_saved_and_restored_goes_on_where_it_was() -> None:
    weather = Weather()
    weather.replace(forecast({"fault": "stockout", "times": 2}, {"fault": "lost"}))
    weather.take("vm", lambda fault: True)
    again = Weather()
    again.restore(weather.document())
    assert again.document() == weather.document()
    again.add({"fault": "never_boots"})
    assert [fault["id"] for fault in again.document()["faults"]] == [1, 2, 3]
