"""Each assumption, looked at: a function that returns what was seen, or raises `Refuted` or `NotSeen`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from orchestrator.core.doctor.project import ASSUMPTIONS, RehearsalFinding
from orchestrator.core.errors import BenchError
from orchestrator.core.market.catalog import CATALOG, find_gpu
from orchestrator.core.market.machines import Accepted
from orchestrator.core.rest import RestRequest
from tests.integration.live.place import DRIVER_S, LONGEST_S, NotSeen, Place, Refuted

Look = Callable[[Place], dict[str, str]]
"""What was seen, by the assumption's name: one machine may show several."""
LATE_S = 30
POLL_S = 5
DEADLINE_S = 60


def seconds(between: timedelta) -> float:
    return between / timedelta(seconds=1)


def surely(place: Place, true: Callable[[], bool], patience_s: float, else_: str) -> None:
    """Waits until it is so. Raises `Refuted` with `else_`."""
    try:
        place.until(true, patience_s, "")
    except NotSeen as exc:
        raise Refuted(else_) from exc


def the_deadline(place: Place) -> dict[str, str]:
    """`deadline`, `deadline-begins`, `request-id`, `billing`: one machine that nobody ends."""
    request = place.request(seconds=DEADLINE_S)
    seen: dict[str, str] = {}
    with place.machine(request) as made:
        again = place.insert(request)
        inserts = [one for one in place.cloud.operations_by_name(made.zone, made.name) if one.kind == "insert"]
        if not isinstance(again, Accepted) or again.instance.id != made.id or len(inserts) != 1:
            raise Refuted(f"the same request was answered with {again}, and there are {len(inserts)} insert operations")
        seen["request-id"] = f"one machine, id {made.id}, and one insert operation"
        place.until(lambda: bool(place.raw(made).get("lastStartTimestamp")), 120, "it runs")
        document = place.raw(made)
        started = datetime.fromisoformat(document["lastStartTimestamp"])
        told = document.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp")
        ends = datetime.fromisoformat(told) if told else started + timedelta(seconds=DEADLINE_S)
        if told:
            off = seconds(ends - started) - DEADLINE_S
            if abs(off) > LATE_S:
                raise Refuted(f"deadline-begins: it ends {off:+.0f} s from {DEADLINE_S} s after it began to run")
            seen["deadline-begins"] = f"it is to end {off + DEADLINE_S:.0f} s after it began to run"
        gone = lambda: place.cloud.instance(made.zone, made.name) is None  # noqa: E731
        surely(place, gone, DEADLINE_S + 600, "deadline: it was still there 600 s after its deadline")
        late = seconds(place.clock.now() - ends)
        if late > LATE_S + 2 * POLL_S:
            raise Refuted(f"deadline: it was gone {late:.0f} s after its deadline")
        seen["deadline"] = f"it was gone {late:.0f} s after its deadline, looking every {POLL_S} s"
    if place.bill is not None:
        charged = place.bill(made.name)
        lived = seconds(ends - started) + late
        least, most = place.usd_per_hour * 60 / 3600, place.usd_per_hour * int(lived + 2) / 3600
        if not least * 9 / 10 <= charged <= most:
            raise Refuted(f"billing: ${charged} for {lived:.0f} s at ${place.usd_per_hour}/h")
        seen["billing"] = f"${charged} for {lived:.0f} s"
    return seen


def the_machine(place: Place) -> dict[str, str]:
    """`self-delete`, `prefixes`: a machine tries what it may and what it must not."""
    victim = place.request()
    with place.machine(victim) as other:
        # The name of the victim begins with `bench-` too, so its deletion shows how far the condition reaches.
        request = place.request(probe={"bucket": place.bucket.name, "run": place.run, "other": f"not-{other.name}"})
        with place.machine(request) as made:
            report = place.probed(made)
            gone = lambda: place.cloud.instance(made.zone, made.name) is None  # noqa: E731
            surely(place, gone, 120, "self-delete: it did not delete itself within 120 s of its report")
            kinds = [one for one in place.cloud.operations_by_name(made.zone, made.name) if one.kind == "delete"]
    seen = {"self-delete": f"deleted by {kinds[0].user if kinds else 'itself'}; another name: HTTP {report['other']}"}
    if report["own"] not in (200, 201) or report["list"] != 200:
        raise Refuted(f"prefixes: to store below runs/ is answered with {report['own']}, to list with {report['list']}")
    if "prefixes" in place.unlike_google:
        return seen
    open_doors = [what for what in ("ledger", "ledger_read", "plan", "client") if report[what] not in (403, 404)]
    if open_doors:
        raise Refuted(f"prefixes: it reaches {', '.join(open_doors)}: {report}")
    return seen | {"prefixes": "runs/ is open; the top of the bucket, the ledger, plans and events of clients are not"}


def the_preemption(place: Place) -> dict[str, str]:
    """`preemption`, `spot-quota`: one spot machine."""
    before = {quota.metric: quota for quota in place.cloud.quotas(place.region)}
    request = place.request(spot=True)
    seen: dict[str, str] = {}
    with place.machine(request) as made:
        place.until(lambda: place.raw(made).get("status") == "RUNNING", 120, "it runs")
        after = {quota.metric: quota for quota in place.cloud.quotas(place.region)}
        granted = before.get("PREEMPTIBLE_CPUS")
        if granted is not None and granted.limit == 0:
            more = after["CPUS"].usage - before["CPUS"].usage
            if more <= 0:
                raise Refuted("spot-quota: PREEMPTIBLE_CPUS is 0, and a spot machine does not count as CPUS")
            seen["spot-quota"] = f"PREEMPTIBLE_CPUS is 0, and a spot machine takes {more:g} of CPUS"
        place.preempt(made)

        def logged() -> bool:
            kinds = {one.kind for one in place.cloud.operations_by_name(made.zone, made.name)}
            return "compute.instances.preempted" in kinds

        took = place.until(logged, 240, "an operation compute.instances.preempted")
        seen["preemption"] = f"compute.instances.preempted was logged within {took:.0f} s"
    return seen


def the_error(place: Place) -> dict[str, str]:
    """`done-with-error`: a GPU is asked for where none may be had, so that nothing is made."""
    gpu = find_gpu("t4")
    assert gpu is not None
    quotas = {quota.metric: quota.limit for quota in place.cloud.quotas(place.region)}
    if quotas.get("NVIDIA_T4_GPUS", 1) > 0 and quotas.get("GPUS_ALL_REGIONS", 1) > 0:
        raise NotSeen("this project may have a GPU, and one is not asked for to see it refused")
    request = place.request(
        seconds=30, machine_type=gpu.default_machine, accelerator=gpu.accelerator, accelerator_count=1
    )
    answer = place.insert(request)
    if isinstance(answer, Accepted):
        place.end(request)
        place.seconds[request.name] = LONGEST_S  # a share of the worst case, for it was dearer than the small ones
        raise NotSeen("a machine was made though the quota is 0; it is gone again")
    place.seconds[request.name] = 0
    failed = [one for one in place.cloud.operations_by_name(place.zone, request.name) if one.kind == "insert"]
    if not failed:
        raise NotSeen(f"it was refused at once, without an operation: {answer.code}")
    if failed[0].status != "DONE":
        raise Refuted(f"the operation is {failed[0].status}, and the request was refused: {answer.code}")
    return {"done-with-error": f"the operation is DONE, with {answer.code}"}


def the_bucket(place: Place) -> dict[str, str]:
    """`generation`, `date`."""
    name, won = f"runs/{place.run}/once", []

    def write(number: int) -> None:
        if place.bucket.create(name, b"%d" % number):
            won.append(number)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    if len(won) != 1:
        raise Refuted(f"generation: {len(won)} of 4 writers were told that they were first")
    skews = []
    for service, path in (
        ("storage", f"/storage/v1/b/{place.bucket.name}"),
        ("compute", f"/compute/v1/projects/{place.project}"),
    ):
        answer = place.rest.ask(RestRequest(service, "GET", path))  # type: ignore[arg-type]
        if answer.skew_s is None:
            raise Refuted(f"date: {service} sends no Date")
        skews.append(answer.skew_s)
    apart = abs(skews[0] - skews[1])
    if apart > 2.5:
        raise Refuted(f"date: storage's clock and compute's are {apart:.1f} s apart")
    return {
        "generation": f"of 4 writers at once one was first: the {won[0] + 1}.",
        "date": f"storage and compute are {apart:.1f} s apart, this clock {skews[0]:+.1f} s off",
    }


def the_images(place: Place) -> dict[str, str]:
    """`image`: every family of the catalog."""
    families = sorted({(gpu.image_project, gpu.image_family) for gpu in CATALOG})
    try:
        found = [place.cloud.image(owner, family).rpartition("/")[2] for owner, family in families]
    except BenchError as exc:
        raise Refuted(str(exc)) from exc
    return {"image": ", ".join(found)}


def the_driver(place: Place) -> dict[str, str]:
    """`driver`: an L4, where one was asked for."""
    if not place.gpu:
        raise NotSeen("no GPU was asked for: GPU=1 does")
    gpu = find_gpu("l4")
    assert gpu is not None
    base = place.request(
        seconds=DRIVER_S,
        spot=True,
        probe={"bucket": place.bucket.name, "run": place.run, "driver": "yes", "other": "nobody"},
    )
    request = replace(
        base,
        name=f"bench-{place.run}-99",
        machine_type=gpu.default_machine,
        disk_gb=60,
        image=place.cloud.image(gpu.image_project, gpu.image_family),
    )
    with place.machine(request) as made:
        report = place.probed(made, DRIVER_S)
    if report["driver"] == "none":
        raise Refuted("nvidia-smi did not answer within five minutes of the first boot")
    return {"driver": f"{report['driver']} answered {float(report['uptime']):.0f} s after the kernel started"}


def the_api(place: Place) -> dict[str, str]:
    """`api-settles`: an API that is off is enabled, and asked until it answers."""
    if place.spare_api is None:
        raise NotSeen("an API would have to be switched off in this project")
    api, project = place.spare_api(), f"/v1/projects/{place.project}"
    asked = RestRequest("iam", "GET", f"{project}/serviceAccounts/{place.account or 'nobody'}")
    if not place.rest.ask(asked).api_off:
        raise NotSeen(f"{api} is on")
    place.rest.ask(RestRequest("serviceusage", "POST", f"{project}/services:batchEnable", body={"serviceIds": [api]}))
    if not place.rest.ask(asked).api_off:
        raise NotSeen(f"{api} answered as soon as it was enabled")
    took = place.until(lambda: not place.rest.ask(asked).api_off, 900, f"{api} answers")
    return {"api-settles": f"{api} was refused for {took:.0f} s more after it was enabled"}


LOOKS: Mapping[Look, tuple[str, ...]] = {
    the_images: ("image",),
    the_bucket: ("generation", "date"),
    the_error: ("done-with-error",),
    the_deadline: ("request-id", "deadline-begins", "deadline", "billing"),
    the_machine: ("self-delete", "prefixes"),
    the_preemption: ("preemption", "spot-quota"),
    the_driver: ("driver",),
    the_api: ("api-settles",),
}
"""Each with the assumptions that it looks at."""
UNSEEN = {
    "billing": "the invoice comes hours later: compare it with `bench costs`",
    "spot-quota": "this project has a quota for spot machines",
    "deadline-begins": "the machine does not say when it is to end",
}


def looked(place: Place, look: Look, names: tuple[str, ...]) -> list[RehearsalFinding]:
    """What one look found, whatever goes wrong in it."""
    try:
        seen: dict[str, Any] = look(place)
        wrong, why = "", ""
    except Refuted as exc:
        seen, wrong, why = {}, str(exc), ""
    except (NotSeen, BenchError) as exc:
        seen, wrong, why = {}, "", str(exc)
    findings = []
    for name in names:
        if name in seen:
            findings.append(RehearsalFinding(name=name, state="verified", detail=seen[name]))
        elif wrong and (
            wrong.startswith(f"{name}: ")
            or (not any(wrong.startswith(f"{other}: ") for other in names) and name == names[0])
        ):
            findings.append(RehearsalFinding(name=name, state="refuted", detail=wrong.removeprefix(f"{name}: ")))
        else:
            because = place.unlike_google.get(name) or why or wrong or UNSEEN.get(name, "it could not be provoked")
            findings.append(RehearsalFinding(name=name, state="not seen", detail=because))
    return findings


assert sorted(name for names in LOOKS.values() for name in names) == sorted(ASSUMPTIONS)
