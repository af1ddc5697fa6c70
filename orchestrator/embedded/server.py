"""The embedded cloud as one object: it makes all parts and serves them on free loopback ports."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from orchestrator.embedded import device
from orchestrator.embedded.batch import Batch, Runner
from orchestrator.embedded.buckets import Buckets
from orchestrator.embedded.commons import Commons
from orchestrator.embedded.compute import Compute, unknown_request
from orchestrator.embedded.documents import parse_stamp, private_folder, utc_stamp
from orchestrator.embedded.fleet import DEFAULT_NOTICE_S, REAL, SIMULATED, Durations, Fleet, VmSite
from orchestrator.embedded.guard import Guard, new_token, write_token
from orchestrator.embedded.guest import MachineFactory
from orchestrator.embedded.images import ImageStore
from orchestrator.embedded.inventory import Inventory
from orchestrator.embedded.listener import HttpRequest, Listener, Reply, json_reply
from orchestrator.embedded.machine import ProcessMachine
from orchestrator.embedded.management import Management
from orchestrator.embedded.meter import Bill, Meter, Tariff
from orchestrator.embedded.objects import Objects
from orchestrator.embedded.operations import Ids, Operations
from orchestrator.embedded.permissions import Policies
from orchestrator.embedded.resources import Resources, Zones
from orchestrator.embedded.routes import Observer, Route, Router
from orchestrator.embedded.storage import Storage
from orchestrator.embedded.store import Store
from orchestrator.embedded.templates import TemplateStore
from orchestrator.embedded.timeline import RealTimeline, Timeline
from orchestrator.embedded.weather import BadWeather, Weather

# The control API: status, bill, weather, preemptions and stopping. A real cloud has no such API.


class ControlApi:
    """Answers requests to the control API. Bodies are JSON; errors are `{"error": ...}`."""

    def __init__(self, cloud: EmbeddedCloud) -> None:
        self.cloud = cloud

    def answer(self, request: HttpRequest) -> Reply:
        try:
            document = json.loads(request.body) if request.body else {}
        except ValueError:
            return json_reply(400, {"error": "the body is not JSON"})
        match request.method, request.path:
            case "GET", "/control/status":
                return json_reply(200, self.cloud.status())
            case "GET", "/control/bill":
                return json_reply(200, self.cloud.bill().document())
            case "GET", "/control/weather":
                return json_reply(200, self.cloud.weather.document())
            case "POST", "/control/weather":
                return self._weather(document)
            case "POST", "/control/preempt":
                return self._preempt(document)
            case "POST", "/control/stop":
                self.cloud.request_stop()
                return json_reply(200, {"stopping": True})
            case _:
                return json_reply(404, {"error": f"no {request.method} {request.path} here"})

    def _weather(self, document: Any) -> Reply:
        try:
            self.cloud.weather.replace(document)
        except BadWeather as error:
            return json_reply(400, {"error": str(error)})
        return json_reply(200, self.cloud.weather.document())

    def _preempt(self, document: Any) -> Reply:
        name = document.get("name") if isinstance(document, dict) else None
        notice = document.get("notice_s") if isinstance(document, dict) else None
        if notice is not None and (not isinstance(notice, (int, float)) or notice < 0):
            return json_reply(400, {"error": f"notice_s must be a number of seconds, not {notice!r}"})
        if not self.cloud.preempt(str(name), notice):
            return json_reply(404, {"error": f"no running VM is named {name!r}"})
        return json_reply(200, {"name": name})


PROJECT = "bench-embedded"
BUCKET = "bench-embedded"
HEARTBEAT_S = 2.0


class EmbeddedCloud:
    """A whole cloud. It runs from construction until `close`.

    home: the directory with everything that it stores. Started there again, it has its bill, objects and weather.
    timeline: by default the wall clock. On a simulated one the machines must be scripted.
    machines: makes the machine that simulates a VM; by default real processes.
    quotas: limits by `METRIC` or `region/METRIC`, which replace those of the inventory.
    advice: its capacity advice on spot machines by zone (see `resources.Zones`); by default it gives none.
    observer: called for every answered request before the client gets the answer, except for requests about objects.
    """

    def __init__(  # noqa: PLR0913 - each by its name
        self,
        home: Path | str,
        *,
        timeline: Timeline | None = None,
        project: str = PROJECT,
        bucket: str = BUCKET,
        machines: MachineFactory = ProcessMachine,
        weather: dict[str, Any] | None = None,
        quotas: dict[str, float] | None = None,
        durations: Durations | None = None,
        observer: Observer | None = None,
        advice: Zones | None = None,
    ) -> None:
        self.home = Path(home)
        private_folder(self.home)
        self.token = new_token()
        write_token(self.home, self.token)
        self.project = project
        self.bucket = bucket
        self.timeline: Timeline = timeline if timeline is not None else RealTimeline()
        self.started_at = self.timeline.now()
        self.stop_requested = threading.Event()
        self.touched_at = time.monotonic()
        self.closed = False
        self.store = Store(self.home / "state.sqlite")
        self.weather = Weather(lambda: self.store.owe("weather", "document", self.weather.document()))
        self.weather.restore(self.store.get("weather", "document") or {"faults": []})
        self.meter = Meter(self.store)
        commons = self._commons(quotas)
        self.operations = commons.operations
        self._write_off()
        pace = durations or (SIMULATED if self.timeline.simulated else REAL)
        self.fleet = Fleet(
            commons, VmSite(pace, machines, self._scratch(), lambda: (self.compute_url, self.storage_url))
        )
        self.guard = Guard(self.token, self.fleet.by_token)
        policies = Policies(project, self.store)
        self._listen(
            self._compute_port(commons, policies, observer, advice), self._storage_port(commons, policies, observer)
        )
        if weather is not None:
            self.weather.replace(weather)
        self._beat()

    def _commons(self, quotas: dict[str, float] | None) -> Commons:
        ids = Ids()
        return Commons(
            project=self.project,
            store=self.store,
            inventory=Inventory.load(Tariff.load(), quotas=quotas),
            meter=self.meter,
            operations=Operations(self.project, self.store, ids),
            weather=self.weather,
            timeline=self.timeline,
            ids=ids,
        )

    def _scratch(self) -> Path:
        """The folder for the VMs. It is emptied first: it may have files of VMs of an earlier process."""
        scratch = self.home / "vms"
        shutil.rmtree(scratch, ignore_errors=True)
        private_folder(scratch)
        return scratch

    def _compute_port(
        self, commons: Commons, policies: Policies, observer: Observer | None, advice: Zones | None
    ) -> Router:
        """Compute Engine, and the APIs of a project."""
        resources = Resources(self.project, commons.inventory, self.weather)
        self.images = ImageStore(commons, self.fleet, resources)
        templates = TemplateStore(commons)
        self.batch = Batch(commons, Runner(commons, self.fleet, templates))
        self.compute = compute = Compute(
            commons, fleet=self.fleet, images=self.images, resources=resources, advised=advice
        )
        management = Management(commons, policies)

        def check(route: Route, parts: dict[str, str], request: HttpRequest) -> None:
            check_path = compute.check_place if route.service == "compute" else management.check_project
            check_path(parts, request)

        parts = (compute, templates, self.images, management, self.batch)
        routes = [route for part in parts for route in part.routes()]
        return Router(commons, routes, check=check, unknown=unknown_request, observer=observer)

    def _storage_port(self, commons: Commons, policies: Policies, observer: Observer | None) -> Router:
        """Cloud Storage."""
        objects = Objects(self.home / "objects", self.timeline.now)
        buckets = Buckets(commons, policies, objects)
        self.storage = Storage(commons, objects, buckets, self.fleet.witness, observer)
        objects.make_bucket(self.bucket)
        buckets.know(self.bucket)
        return self.storage.router

    def _listen(self, compute: Router, storage: Router) -> None:
        def touching(answer: Callable[[HttpRequest], Reply]) -> Callable[[HttpRequest], Reply]:
            def touch_and_answer(request: HttpRequest) -> Reply:
                self.touched_at = time.monotonic()
                return answer(request)

            return touch_and_answer

        strict = replace(self.guard, json=True)
        clients_only = replace(strict, vm_of=lambda _: None)
        self.listeners = (
            Listener("compute", touching(compute.serve), strict, partial(self._skewed_time, "compute")),
            Listener("storage", touching(storage.serve), self.guard, partial(self._skewed_time, "storage")),
            Listener("control", touching(ControlApi(self).answer), clients_only),
        )
        self.compute_url, self.storage_url, self.control_url = (listener.url for listener in self.listeners)
        self.storage.url = self.storage_url

    def __enter__(self) -> EmbeddedCloud:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all VMs and processes of this cloud. Calling it again has no effect."""
        if self.closed:
            return
        self.closed = True
        self.fleet.close()
        for listener in self.listeners:
            listener.close()
        self.storage.close()
        self.timeline.close()
        self.store.close()

    # Its state

    @cached_property
    def gpu(self) -> str:
        """The name of this computer's GPU, which its machines have; empty if there is none."""
        return device.gpu_name()

    def instances(self) -> list[dict[str, Any]]:
        """All instances that exist now, as `GET /control/status` lists them."""
        now = self.timeline.now()
        return [vm.summary(now) for vm in self.fleet.all()]

    def bill(self) -> Bill:
        """The bill so far, with all VMs that exist or existed."""
        return self.meter.bill(self.timeline.now())

    def status(self) -> dict[str, Any]:
        """The answer of `GET /control/status`."""
        uptime = (self.timeline.now() - self.started_at).total_seconds()
        return {
            "project": self.project,
            "bucket": self.bucket,
            "uptime_s": uptime,
            "device": {"gpu": self.gpu, "cpu": device.cpu_name()},
            "simulated_prices": True,
            "instances": self.instances(),
        }

    def preempt(self, name: str, notice_s: float | None = None) -> bool:
        """Preempts the running VM of this name. Returns False if there is none."""
        vm = self.fleet.named(name)
        if vm is None or vm.status != "RUNNING":
            return False
        self.fleet.preempt(vm, DEFAULT_NOTICE_S if notice_s is None else float(notice_s))
        return True

    # For the daemon

    @property
    def idle_s(self) -> float:
        """The seconds since the last request; 0 while any VM exists."""
        return 0.0 if self.fleet.all() else time.monotonic() - self.touched_at

    def request_stop(self) -> None:
        """Ends all VMs, and asks the daemon to close the cloud."""
        self.fleet.close()
        self.stop_requested.set()

    def _skewed_time(self, service: str, target: str) -> datetime:
        """The time in an answer to `target`: the present, plus the clock skew that the weather may set."""
        skew = self.weather.holds(target, "clock_skew", service=service)
        return self.timeline.now() + timedelta(seconds=float(skew.params["seconds"]) if skew else 0)

    def _write_off(self) -> None:
        """Ends the accounts and operations that were open when an earlier process died, at its last sign of life."""
        now = self.timeline.now()
        last_seen: datetime = parse_stamp((self.store.get("heartbeat", "last") or {"at": utc_stamp(now)})["at"])
        self.meter.write_off(min(last_seen, now), "crash")
        self.operations.close_all(now)

    def _beat(self) -> None:
        self.store.owe("heartbeat", "last", {"at": utc_stamp(self.timeline.now())})
        if not self.timeline.simulated:
            self.timeline.call_later(HEARTBEAT_S, self._beat)
