"""A table is made of the price catalogue, or the old one stays and it is said what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.core.market.pricing import PricedMachine, PriceSheet
from orchestrator.core.market.skus import NotRefreshed, Refreshed, SkuCatalogue, list_skus, parse_sku, refresh_prices
from orchestrator.core.rest import RestAnswer
from orchestrator.embedded.inventory import Inventory
from orchestrator.embedded.meter import Tariff
from orchestrator.embedded.skus import COMPUTE
from orchestrator.embedded.skus import EmbeddedCatalogue as EmbeddedCatalogue
from tests.support.conversations import SILENCE, good, lead, refusal
from tests.unit.core.asked import SHEET, D

NOW = datetime(2026, 11, 22, 12, 30, tzinfo=UTC)
Sku = dict[str, Any]
SOLD: list[Sku] = EmbeddedCatalogue(Inventory.load(Tariff.load())).skus[COMPUTE]
"""As Google serves them; the embedded cloud shares no code with what reads them."""


def made(documents: list[Sku] = SOLD, *, leave_out: bool = False, old: PriceSheet = SHEET) -> Refreshed | NotRefreshed:
    found = SkuCatalogue(tuple(sku for one in documents if (sku := parse_sku(one)) is not None))
    return refresh_prices(old, found, now=NOW, whose="a catalogue", leave_out=leave_out)


def sheet(documents: list[Sku] = SOLD, **options: Any) -> PriceSheet:
    answer = made(documents, **options)
    assert isinstance(answer, Refreshed), answer
    return answer.sheet


def described(text: str) -> Callable[[Sku], bool]:
    return lambda sku: bool(sku["description"] == text)


def changed(which: Callable[[Sku], bool], change: Callable[[Sku], None]) -> list[Sku]:
    documents = [deepcopy(sku) if which(sku) else sku for sku in SOLD]
    hit = [sku for sku in documents if which(sku)]
    assert hit
    for sku in hit:
        change(sku)
    return documents


def price(sku: Sku) -> dict[str, Any]:
    found: dict[str, Any] = sku["pricingInfo"][0]["pricingExpression"]["tieredRates"][-1]["unitPrice"]
    return found


L4_SPOT = "Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas"


def test_a_machine_is_made_of_its_cores_its_memory_and_its_gpu() -> None:
    table = sheet()
    assert table.accelerators["nvidia-l4"]["us-central1"].spot == D("0.2862")
    assert table.machines["g2-standard-4"]["us-central1"].spot == D("0.07502")
    assert table.machines["n1-standard-4"]["us-central1"].standard == D("0.19")
    assert table.external_ip.spot == D("0.0025")
    assert table.disk_gib_month["pd-standard"].usd == D("0.04"), "not the tier that is given away"
    assert table.as_of == NOW.date()
    assert table.sources == {"billing-catalog": f"a catalogue, {len(SOLD)} SKUs read at 2026-11-22T12:30Z"}
    assert table.trusted == ("billing-catalog",)


def test_a_table_prices_all_that_the_old_one_did_and_reads_back_the_same() -> None:
    table = sheet()
    for name, regions in SHEET.machines.items():
        assert table.machines[name].keys() >= regions.keys()
    for name, regions in SHEET.accelerators.items():
        assert table.accelerators[name].keys() >= regions.keys()
    assert PriceSheet.parse(table.dump()) == table
    assert table.hourly(PricedMachine("g2-standard-8", "nvidia-l4", 1), "us-central1", "spot", 60, True) is not None


def test_flex_start_has_skus_of_its_own_and_none_is_left_out_or_invented() -> None:
    table = sheet()
    assert table.accelerators["nvidia-h100-80gb"]["us-central1"].flex_start == D("4.200761")
    assert table.accelerators["nvidia-l4"]["us-central1"].flex_start is None
    machine = PricedMachine("a2-highgpu-1g", "nvidia-tesla-a100", 1)
    quotes = {way: table.hourly(machine, "us-central1", way, 60, True) for way in ("spot", "flex-start", "standard")}
    spot, flexible, standard = quotes.values()
    assert spot is not None
    assert flexible is not None
    assert standard is not None
    assert spot < flexible < standard
    gone = without(lambda sku: sku["description"].startswith("DWS Defined Duration A2 Core"))
    answer = made(gone)
    assert isinstance(answer, NotRefreshed)
    assert "DWS Defined Duration A2 Core (OnDemand) in us-central1: no SKU" in answer.problems
    price_gone = sheet(gone, leave_out=True).hourly(machine, "us-central1", "flex-start", 60, True)
    assert price_gone is None


def test_no_figure_is_below_what_its_parts_cost() -> None:
    def odd(sku: Sku) -> None:
        price(sku)["nanos"] = 12_345_679

    core = "Spot Preemptible G2 Instance Core running in Americas"
    table = sheet(changed(described(core), odd))
    ram = next(sku for sku in SOLD if sku["description"] == core.replace("Core", "Ram"))
    exact = 4 * D("0.012345679") + 16 * D(price(ram)["nanos"]) / 10**9
    found = table.machines["g2-standard-4"]["us-central1"].spot
    assert found is not None
    assert exact <= found < exact + D("0.000001")


def without(which: Callable[[Sku], bool]) -> list[Sku]:
    return [sku for sku in SOLD if not which(sku)]


def euros(sku: Sku) -> None:
    price(sku)["currencyCode"] = "EUR"


def monthly(sku: Sku) -> None:
    sku["pricingInfo"][0]["pricingExpression"]["usageUnit"] = "mo"


def free(sku: Sku) -> None:
    price(sku).update(units="0", nanos=0)


def dear(sku: Sku) -> None:
    price(sku).update(units="9", nanos=0)


def twice() -> list[Sku]:
    other = deepcopy(next(sku for sku in SOLD if sku["description"] == L4_SPOT))
    other["skuId"] = "0000-0000-0000"
    price(other)["nanos"] += 1
    return [*SOLD, other]


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        (without(described(L4_SPOT)), "in us-central1: no SKU"),
        (twice(), "in us-central1: 2 SKUs match, at $0.286200000 and $0.286200001"),
        (changed(described(L4_SPOT), euros), "in us-central1: the price is in EUR, not USD"),
        (changed(described(L4_SPOT), monthly), "in us-central1: sold by mo, not by h"),
        (changed(described(L4_SPOT), free), "in us-central1: the price is 0"),
        (changed(described(L4_SPOT), dear), "spot $9.000000 is above on-demand $0.560040"),
        (changed(described(L4_SPOT), lambda sku: sku.pop("pricingInfo")), "in us-central1: no SKU"),
        (changed(described(L4_SPOT), lambda sku: sku.update(pricingInfo=[])), "in us-central1: no SKU"),
        (without(described("Balanced PD Capacity")), "Balanced PD Capacity (OnDemand) in us-central1: no SKU"),
        ([], "no SKU"),
    ],
    ids=["missing", "two", "euros", "unit", "free", "spot above standard", "no price", "no info", "disk", "nothing"],
)  # fmt: skip
def test_a_figure_that_is_not_clear_makes_no_table_and_is_named(documents: list[Sku], said: str) -> None:
    answer = made(documents)
    assert isinstance(answer, NotRefreshed)
    assert said in "\n".join(answer.problems)


def test_what_is_not_clear_can_be_left_out_and_then_nothing_is_started_there() -> None:
    answer = made(without(described(L4_SPOT)), leave_out=True)
    assert isinstance(answer, Refreshed)
    assert len(answer.left_out) == 3
    assert answer.sheet.hourly(PricedMachine("g2-standard-4", "nvidia-l4", 1), "us-central1", "spot", 60, True) is None
    assert answer.sheet.hourly(PricedMachine("g2-standard-4", "nvidia-l4", 1), "us-east4", "spot", 60, True) is not None


def test_without_a_price_of_an_address_there_is_no_table_whatever_may_be_left_out() -> None:
    documents = without(described("External IP Charge on a Spot Preemptible VM"))
    assert isinstance(made(documents, leave_out=True), NotRefreshed)


def test_two_skus_at_one_price_are_one_price() -> None:
    assert sheet([*SOLD, *SOLD]).accelerators == sheet().accelerators


@pytest.mark.parametrize(
    ("traps", "ways"),
    [
        (("Commitment", "Sole Tenancy", "Custom", "Reserved", "Regional"), ("standard", "spot", "flex_start")),
        (("DWS",), ("standard", "spot")),
    ],
)
def test_what_looks_alike_is_not_taken_for_it(traps: tuple[str, ...], ways: tuple[str, ...]) -> None:
    documents = deepcopy(SOLD)
    alike = [sku for sku in documents if any(word in sku["description"] for word in traps)]
    assert len(alike) > 5
    for sku in alike:
        dear(sku)

    def figures(made: PriceSheet) -> dict[tuple[str, str], list[object]]:
        tables = {**made.machines, **made.accelerators}
        return {
            (n, region): [getattr(price, way) for way in ways] for n in tables for region, price in tables[n].items()
        }

    assert figures(sheet(documents)) == figures(sheet())


def test_what_changed_is_told_with_both_figures() -> None:
    def raised(sku: Sku) -> None:
        price(sku)["nanos"] = 300_000_000

    answer = made(changed(described(L4_SPOT), raised))
    assert isinstance(answer, Refreshed)
    assert answer.changed["nvidia-l4 us-central1 spot"] == (Decimal("0.2862"), Decimal("0.3"))


# --- the pages ------------------------------------------------------------------------------------------------------


def test_every_page_is_asked_for_with_the_token_of_the_one_before() -> None:
    pages = [
        good(skus=SOLD[:100], nextPageToken="b"),
        good(skus=SOLD[100:200], nextPageToken="c"),
        good(skus=SOLD[200:]),
    ]
    talk = lead(list_skus, reply={"/skus": pages})
    assert isinstance(talk.result, SkuCatalogue)
    assert len(talk.result.skus) == len(SOLD)
    assert [request.query.get("pageToken") for request in talk.asked] == [None, "b", "c"]
    assert {request.query["currencyCode"] for request in talk.asked} == {"USD"}


@pytest.mark.parametrize("bad", [refusal(403), refusal(500), SILENCE, good(skus="none"), good()])
def test_a_bad_page_is_no_catalogue(bad: RestAnswer) -> None:
    answer = lead(list_skus, reply={"/skus": bad}).result
    assert isinstance(answer, RestAnswer)
    later = lead(list_skus, reply={"/skus": [good(skus=SOLD[:9], nextPageToken="b"), refusal(403)]}).result
    assert isinstance(later, RestAnswer)


def test_pages_without_an_end_end() -> None:
    talk = lead(list_skus, reply=lambda _: good(skus=SOLD[:1], nextPageToken="again"))
    assert isinstance(talk.result, RestAnswer)
    assert len(talk.asked) == 2
    numbers = iter(range(10**6))
    talk = lead(list_skus, reply=lambda _: good(skus=[], nextPageToken=f"{next(numbers)}"))
    assert isinstance(talk.result, RestAnswer)
    assert "does not end" in talk.result.message


def test_skus_that_are_not_as_described_are_counted_and_passed_over() -> None:
    odd: list[Any] = [7, {}, {"skuId": "x", "pricingInfo": "free"}, SOLD[0] | {"category": None}]
    talk = lead(list_skus, reply={"/skus": good(skus=[*odd, SOLD[0]])})
    assert isinstance(talk.result, SkuCatalogue)
    assert (len(talk.result.skus), talk.result.unread) == (1, 4)
