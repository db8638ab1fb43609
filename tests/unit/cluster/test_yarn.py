"""A driver in YARN, with responses of a ResourceManager of Hadoop 3.4.2 (`yarn_applications.json`)."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from frazil.cluster import driver as calls
from frazil.cluster.driver import ApiUnavailable, DriverState
from frazil.cluster.yarn import (
    YarnDriver,
    find_application,
    parse_application_id,
    read_resource_managers,
    strip_log_envelope,
    to_driver_status,
)
from frazil.errors import AccessDenied, EnvironmentUnusable

from .conftest import Answer, Api

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "yarn_applications.json").read_text())
ID = "application_1795387984544_0001"
PATH = f"/ws/v1/cluster/apps/{ID}"
OUTPUT = """\
26/11/22 22:50:40 INFO Client: Submitting application application_1795387737634_0001 to ResourceManager
26/11/22 22:50:41 INFO YarnClientImpl: Submitted application application_1795387737634_0001
26/11/22 22:50:41 INFO Client: Application report for application_1795387737634_0001 (state: ACCEPTED)
"""


def test_an_application_is_found_by_its_tag(api: Api) -> None:
    apps = [{"id": "application_1_0007"}, {"id": ID}]
    api.answers["GET", "/ws/v1/cluster/apps"] = Answer(body={"apps": {"app": apps}})
    assert find_application("frazil-a", addresses=["http://127.0.0.1:1", api.address], user="alice") == ID
    assert "applicationTags=frazil-a&user.name=alice" in api.requested[0][1]
    api.answers["GET", "/ws/v1/cluster/apps"] = Answer(body={"apps": None})
    assert find_application("frazil-b", addresses=[api.address]) is None
    api.answers["GET", "/ws/v1/cluster/apps"] = Answer(403, {"RemoteException": {}})
    for silent in ([], ["http://127.0.0.1:1"], [api.address]):
        with pytest.raises(ApiUnavailable):
            find_application("frazil-b", addresses=silent)


def driver(*apis: Api | str, user: str | None = None) -> YarnDriver:
    return YarnDriver(ID, addresses=[each if isinstance(each, str) else each.address for each in apis], user=user)


@pytest.mark.parametrize(
    ("recorded", "state", "code", "says"),
    [
        ("accepted", DriverState.WAITING, None, "cluster resource is empty"),
        ("running", DriverState.RUNNING, None, "the ApplicationMaster is running"),
        ("succeeded", DriverState.SUCCEEDED, 0, "the driver ended normally"),
        ("failed at once", DriverState.FAILED, 11, "the driver's Python exited with code 11"),
        ("failed later", DriverState.FAILED, 11, "the driver's Python exited with code 11"),
        ("ended before Spark", DriverState.SUCCEEDED, 0, "before it started Spark"),
        ("killed", DriverState.KILLED, None, "was killed by user alice"),
    ],
)
def test_each_yarn_application_state_maps_to_the_expected_driver_state(
    api: Api, recorded: str, state: DriverState, code: int | None, says: str
) -> None:
    api.answers["GET", PATH] = Answer(body={"app": RECORDED[recorded]})
    found = driver(api).status()
    assert (found.state, found.exit_code) == (state, code)
    assert says in found.reason


@pytest.mark.parametrize(
    ("report", "state", "says"),
    [
        ({"state": "NEW"}, DriverState.WAITING, "YARN reports the state NEW"),
        ({"state": "FINISHED", "finalStatus": "KILLED"}, DriverState.KILLED, "the application was killed in YARN"),
        ({"state": "FINISHED", "finalStatus": "FAILED"}, DriverState.FAILED, "YARN reports no reason"),
        ({"state": "FINISHED", "finalStatus": "UNDEFINED"}, DriverState.FAILED, "YARN reports no reason"),
        (
            {"state": "FAILED", "diagnostics": "AM Container for appattempt_1 exited with  exitCode: -104\nFailing"},
            DriverState.FAILED,
            "raise resources.driver-memory",
        ),
        (
            {"state": "FAILED", "diagnostics": "AM Container for appattempt_1 exited with  exitCode: 9"},
            DriverState.FAILED,
            "the container exited with code 9",
        ),
        ({"state": "PAUSED"}, DriverState.UNKNOWN, "PAUSED, which frazil does not recognise"),
        ({}, DriverState.UNKNOWN, "frazil does not recognise"),
    ],
)
def test_unrecorded_yarn_reports_are_evaluated_by_the_specification(
    report: dict[str, Any], state: DriverState, says: str
) -> None:
    found = to_driver_status(report)
    assert (found.state, found.exit_code) == (state, None)
    assert says in found.reason


def test_an_application_unknown_to_yarn_is_gone(api: Api) -> None:
    body = {"RemoteException": {"exception": "NotFoundException", "message": f"app with id: {ID} not found"}}
    api.answers["GET", PATH] = Answer(404, body)
    assert driver(api).status().state is DriverState.GONE


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(200, "<html>Log in</html>"), "200 with text/html instead of JSON: is a proxy in front of it?"),
        (Answer(503, "<html>This is standby RM</html>"), "answered 503"),
        (Answer(200, {"apps": None}), "without an application"),
        (Answer(401, "<html>"), "requires Kerberos"),
        (Answer(403, {"RemoteException": {}}), "queue ACLs"),
        (Answer(307, "", {"Location": PATH}), "cannot be reached: TooManyRedirects: Exceeded 30 redirects"),
    ],
)
def test_an_unusable_answer_of_the_cluster_api_means_unknown_and_never_ended(
    api: Api, answer: Answer, says: str
) -> None:
    api.answers["GET", PATH] = answer
    found = driver(api).status()
    assert found.state is DriverState.UNKNOWN
    assert says in found.reason


def test_an_unresponsive_or_unreachable_yarn_resource_manager_leaves_the_driver_state_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "TIMEOUT_S", (0.2, 0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "did not respond in time" in driver(address).status().reason
    gone = driver(address)
    assert gone.status().state is DriverState.UNKNOWN
    assert "Connection refused" in gone.status().reason
    with pytest.raises(EnvironmentUnusable, match=r"cannot kill .*: YARN's ResourceManager cannot be reached"):
        gone.kill()
    assert gone.log(limit_bytes=100) is None
    assert driver().status().state is DriverState.UNKNOWN


def test_a_standby_resource_manager_redirects_and_an_unreachable_one_is_skipped(apis: Any) -> None:
    standby, active = apis(), apis()
    active.answers["GET", PATH] = Answer(body={"app": RECORDED["running"]})
    active.answers["PUT", f"{PATH}/state"] = Answer(202, {"state": "RUNNING"})
    for method, path in active.answers:
        standby.answers[method, path] = Answer(307, "redirecting", {"Location": f"{active.address}{path}"})
    assert driver(standby).status().state is DriverState.RUNNING
    driver(standby).kill()
    method, _, _, body = active.requested[-1]
    assert (method, body) == ("PUT", {"state": "KILLED"})
    assert driver("http://127.0.0.1:1", active).status().state is DriverState.RUNNING
    standby.answers["GET", PATH] = Answer(200, "<html>This is standby RM. There is no active one</html>")
    assert driver(standby, active).status().state is DriverState.RUNNING


def test_kill_can_be_repeated_and_reports_a_missing_permission(api: Api) -> None:
    for answer in (Answer(202, {"state": "RUNNING"}), Answer(200, {"state": "KILLED"}), Answer(404, {})):
        api.answers["PUT", f"{PATH}/state"] = answer
        driver(api, user="alice").kill()
    method, path, _, body = api.requested[0]
    assert (method, path, body) == ("PUT", f"{PATH}/state?user.name=alice", {"state": "KILLED"})
    api.answers["PUT", f"{PATH}/state"] = Answer(403, {"RemoteException": {"exception": "ForbiddenException"}})
    with pytest.raises(AccessDenied, match=r"cannot kill .*: YARN's ResourceManager denies access to this user"):
        driver(api).kill()


def test_the_log_is_the_tail_of_the_container_output(api: Api) -> None:
    node = api.address.removeprefix("http://")
    container = "container_1795387984544_0003_01_000001"
    places = {"amHostHttpAddress": node, "amContainerLogs": f"http://{node}/node/containerlogs/{container}/alice"}
    api.answers["GET", PATH] = Answer(body={"app": {**RECORDED["running"], **places}})
    framed = (
        f"Container: {container} on {node}\nLogAggregationType: LOCAL\n======\nLogType:stdout\n"
        "LogLength:167\nLogContents:\nmaster yarn cluster\nEnd of LogType:stdout.\n*****\n\n"
    )
    api.answers["GET", f"/ws/v1/node/containerlogs/{container}/stdout"] = Answer(body=framed)
    assert driver(api).log(limit_bytes=200) == "master yarn cluster\n"
    assert api.requested[-1][1].endswith("stdout?size=-100")
    assert strip_log_envelope("no frame") == "no frame"
    api.answers["GET", PATH] = Answer(body={"app": RECORDED["accepted"]})
    assert driver(api).log(limit_bytes=200) is None


def test_the_application_id_is_parsed_from_spark_submit_output_once_yarn_accepted_it() -> None:
    assert parse_application_id(OUTPUT) == "application_1795387737634_0001"
    assert parse_application_id(OUTPUT.splitlines()[0]) is None


@pytest.mark.parametrize(
    ("properties", "addresses"),
    [
        ({}, ("http://localhost:8088",)),
        ({"yarn.resourcemanager.hostname": "rm"}, ("http://rm:8088",)),
        ({"yarn.resourcemanager.webapp.address": "rm:88"}, ("http://rm:88",)),
        (
            {
                "yarn.http.policy": "HTTPS_ONLY",
                "yarn.resourcemanager.ha.rm-ids": "a, b",
                "yarn.resourcemanager.hostname.a": "rm1",
                "yarn.resourcemanager.webapp.https.address.b": "rm2:9",
            },
            ("https://rm1:8090", "https://rm2:9"),
        ),
    ],
)
def test_resource_manager_addresses_are_read_from_the_hadoop_configuration(
    tmp_path: Path, properties: dict[str, str], addresses: tuple[str, ...]
) -> None:
    rows = "".join(f"<property><name>{k}</name><value> {v} </value></property>" for k, v in properties.items())
    (tmp_path / "yarn-site.xml").write_text(f"<configuration>{rows}</configuration>")
    assert read_resource_managers(tmp_path) == addresses
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    with pytest.raises(EnvironmentUnusable, match=r"cannot read .*yarn-site\.xml, which defines YARN's address"):
        read_resource_managers(tmp_path)
