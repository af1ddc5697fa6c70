"""What is read of instances: serial output, lists and their pages."""

from __future__ import annotations

from pathlib import Path

from tests.support.scripted_machines import ScriptedVm, Steps
from tests.unit.embedded.builders import NAME, ZONE, Stage, insert_body


def test_serial_output_is_read_on_from_where_one_left_off(tmp_path: Path) -> None:
    def talkative(vm: ScriptedVm) -> Steps:
        vm.log("one")
        yield 60.0
        vm.log("two")
        yield 3600.0

    with Stage(tmp_path, talkative) as stage:
        stage.run_vm()
        path = f"/zones/{ZONE}/instances/{NAME}/serialPort"
        first = stage.rest.get(path)
        assert (first["contents"], first["start"], first["next"]) == ("one\n", "0", "4")
        stage.advance(60)
        assert stage.rest.get(path, start=first["next"])["contents"] == "two\n"
        assert stage.rest.get(path, start="-2")["contents"] == "o\n"
        assert stage.rest.get(path, port=2)["contents"] == ""
        assert stage.rest.call("GET", path, port=9)[0] == 400
        assert stage.rest.call("GET", path, start="x")[0] == 400


def test_instances_are_found_by_their_labels_in_a_zone_and_in_all_of_them(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.rest.insert(insert_body("bench-r1-1"))
        stage.rest.insert(insert_body("bench-r2-1", "europe-west4-a"), "europe-west4-a")
        stage.rest.insert(insert_body("other", labels={"bench-tool": "else"}))
        mine = stage.rest.get(f"/zones/{ZONE}/instances", filter="labels.bench-tool=spotbench")
        assert [item["name"] for item in mine["items"]] == ["bench-r1-1"]
        everywhere = stage.rest.get("/aggregated/instances", filter="labels.bench-tool=spotbench")
        found = {
            zone: [i["name"] for i in scope["instances"]]
            for zone, scope in everywhere["items"].items()
            if "instances" in scope
        }
        assert found == {"zones/us-central1-a": ["bench-r1-1"], "zones/europe-west4-a": ["bench-r2-1"]}
        assert everywhere["items"]["zones/us-east4-a"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
        assert "items" not in stage.rest.get(f"/zones/{ZONE}/instances", filter="name=nothing")


def test_pages_together_hold_everything_once(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for number in range(5):
            stage.rest.insert(insert_body(f"vm-{number}"))
        for path in (f"/zones/{ZONE}/instances", "/aggregated/instances"):
            names: list[str] = []
            token = ""
            while True:
                page = stage.rest.get(path, maxResults=2, pageToken=token)
                scopes = page["items"].values() if isinstance(page["items"], dict) else [{"instances": page["items"]}]
                names += [item["name"] for scope in scopes for item in scope.get("instances", ())]
                token = page.get("nextPageToken", "")
                if not token:
                    break
            assert sorted(names) == [f"vm-{number}" for number in range(5)]


def test_lists_come_by_name_or_newest_first_and_in_no_other_order(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for name in ("b", "a", "c"):
            stage.rest.insert(insert_body(name))
            stage.advance(1)
        path = f"/zones/{ZONE}/instances"
        assert [item["name"] for item in stage.rest.get(path)["items"]] == ["a", "b", "c"]
        newest = stage.rest.get(path, orderBy="creationTimestamp desc")
        assert [item["name"] for item in newest["items"]] == ["c", "a", "b"]
        for bad in ({"orderBy": "size"}, {"maxResults": 501}, {"maxResults": "x"}, {"pageToken": "!"}):
            assert stage.rest.call("GET", path, **bad)[0] == 400
