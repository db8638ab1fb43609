"""An agent with a fake cluster and a local storage: everything except the driver itself."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from frazil import __version__
from frazil.cluster.driver import ApiUnavailable, ClusterDriver, DriverState, DriverStatus
from frazil.errors import EnvironmentUnusable, Fenced
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase
from frazil.remote import agent as agents
from frazil.remote.agent import Agent, StopSignals
from frazil.remote.driver_folder import DriverExit, DriverFolder, DriverReport, LogEnd
from frazil.remote.driver_inputs import DriverInputs
from frazil.remote.heartbeat_mirror import HeartbeatMirror
from frazil.remote.submitter import create_submitter
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec
from frazil.spec.resources import Resources
from frazil.table.storage import LocalStore

DECLARED = """
name: ticks
source: {topics: [ticks], format: json, bootstrap-servers: 'localhost:1'}
table: test.ticks
schema: {at: timestamptz not null}
event-time: at
resources: {master: 'spark://m:7077', deploy-mode: cluster}
"""


class Cluster:
    """A cluster that runs what a test requests. It is both the submitter and each of its drivers."""

    def __init__(self) -> None:
        self.state = DriverStatus(DriverState.RUNNING, "it runs on w:1")
        self.submitted: list[ClusterDriver] = []
        self.silent = 0
        self.kills = 0

    def submit(self, driver: ClusterDriver) -> str:
        self.submitted.append(driver)
        if self.silent:
            self.silent -= 1
            raise ApiUnavailable("it did not respond in time")
        return f"driver-{len(self.submitted)}"

    def find(self, driver: ClusterDriver) -> str | None:  # noqa: ARG002
        return None

    def open(self, submission: str) -> Cluster:  # noqa: ARG002
        return self

    def status(self) -> DriverStatus:
        return self.state

    def kill(self) -> None:
        self.kills += 1
        if self.kills == 1:
            raise EnvironmentUnusable("it does not answer")
        self.state = DriverStatus(DriverState.KILLED, "it was killed")

    def log(self, *, limit_bytes: int) -> str | None:  # noqa: ARG002
        return "the JVM's last words"


class PollsTooEarly:
    """A driver's folder as one who looked before there was an order."""

    def __init__(self, folder: DriverFolder) -> None:
        self._folder, self.polls = folder, 0

    def order(self) -> Any:
        self.polls += 1
        return self._folder.order() if self.polls > 1 else None

    def report(self, driver: str) -> Any:
        self.polls += 1
        return self._folder.report(driver)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)


class World:
    def __init__(self, folder: Path, spec: StreamSpec) -> None:
        self.spec, self.cluster, self.requested = spec, Cluster(), StopSignals()
        self.folder = DriverFolder(LocalStore(), f"{folder}/driver")
        self.ended: list[Any] = []
        self._threads: list[threading.Thread] = []
        self._number = 0

    def start(self, **wanted: Any) -> threading.Thread:
        """Start another agent in a thread."""
        spec = wanted.pop("spec", self.spec)
        prepared = DriverInputs(
            spec=spec,
            declared={"name": "ticks"},
            resources=spec.resources,
            folder=wanted.pop("folder", self.folder),
            restart_generation=wanted.pop("restart_generation", 0),
            program=Path("/opt/drive_stream.py"),
            arguments=("ticks",),
            environment={},
        )
        requested = self.requested

        def run() -> None:
            with HeartbeatMirror(spec, run_folder("ticks")) as mirror:
                try:
                    code, error = Agent(prepared, self.cluster, mirror, requested, **wanted).run()
                    mirror.end(error if code else None)
                    self.ended.append(code)
                except Exception as failure:
                    self.ended.append(failure)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def write_report(self, *, ended: DriverExit | None = None, words: str = "", **heartbeat: Any) -> None:
        """Report as the driver of the order does."""
        order = self.folder.order()
        assert order is not None
        self._number += 1
        if words:
            self.folder.put_log_end(order.id, LogEnd(words, len(words)))
        report = Heartbeat("ticks", 9, "x", Phase.WAITING, self._number, self._number, **heartbeat)
        self.folder.write_report(order.id, DriverReport(self._number, report, None, len(words), ended))

    @property
    def heartbeat(self) -> Heartbeat | None:
        return Heartbeat.read(run_folder("ticks"))

    def stop(self) -> None:
        self.requested.stop = "SIGTERM"
        self.requested.wake.set()

    def over(self) -> None:
        for thread in self._threads:
            if thread.is_alive():
                self.stop()
                self.cluster.state = DriverStatus(DriverState.KILLED, "the test is over")
                thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def world(tmp_path: Path, frazil_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:  # noqa: ARG001
    monkeypatch.setattr(agents, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(agents, "QUERY_INTERVAL_S", 0.01)
    monkeypatch.setattr(agents, "KILL_INTERVAL_S", 0.01)
    monkeypatch.setattr("frazil.remote.heartbeat_mirror.HEARTBEAT_INTERVAL_S", 0.02)
    monkeypatch.setattr("frazil.remote.agent_rules.SUBMISSION_TIMEOUT_S", 0.3)
    file = tmp_path / "ticks.yaml"
    file.write_text(DECLARED)
    run_folder("ticks").mkdir(parents=True)
    found = World(tmp_path, load_stream(file))
    yield found
    found.over()


def test_the_agent_submits_a_driver_mirrors_it_and_exits_as_the_driver_does(
    world: World, eventually: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    world.start()
    eventually(lambda: (found := world.folder.order()) and found.submission == "driver-1")
    order = world.folder.order()
    assert order is not None
    assert order.wanted.version == __version__
    (driver,) = world.cluster.submitted
    assert driver.launch_id == order.id
    assert driver.arguments == ("ticks", "--driver", order.id)
    heartbeat = eventually(lambda: (found := world.heartbeat) and found.notices and found)
    assert (heartbeat.phase, heartbeat.notices) == (
        Phase.STARTING,
        ("driver driver-1: it runs on w:1",),
    )
    world.write_report(batch=7, words="first\n")
    heartbeat = eventually(lambda: (found := world.heartbeat) and found.batch == 7 and found)
    assert (heartbeat.phase, heartbeat.spec_fingerprint) == (Phase.WAITING, world.spec.fingerprint())
    world.write_report(words="first\nsecond\n", ended=DriverExit(11, "OffsetGap: lost"))
    world.cluster.state = DriverStatus(DriverState.FAILED, "FAILED")
    eventually(lambda: world.ended == [11])
    ended = world.heartbeat
    assert ended is not None
    assert (ended.phase, ended.error) == (Phase.ENDED, "OffsetGap: lost")
    assert capfd.readouterr().err.count("first\n") == 1


def test_a_driver_that_ends_just_after_its_report_ends_with_its_own_reason(
    world: World, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end() -> DriverStatus:
        if world.cluster.state.state is DriverState.RUNNING:
            world.write_report(ended=DriverExit(11, "OffsetGap: lost"))
            world.cluster.state = DriverStatus(DriverState.FAILED, "FAILED")
        return world.cluster.state

    monkeypatch.setattr(world.cluster, "status", end)
    world.start()
    eventually(lambda: world.ended)
    assert world.ended == [11]
    assert world.heartbeat is not None
    assert world.heartbeat.error == "OffsetGap: lost"


def test_a_pod_that_was_deleted_is_explained_by_the_cause_that_it_named_before(world: World, eventually: Any) -> None:
    drained = "Eviction API: evicting"
    world.cluster.state = DriverStatus(DriverState.RUNNING, "the pod is being deleted", cause=drained)
    world.start()
    eventually(lambda: (found := world.heartbeat) and "driver driver-1: the pod is being deleted" in found.notices)
    world.write_report(ended=DriverExit(143, "it received SIGTERM"))
    world.cluster.state = DriverStatus(DriverState.GONE, "the pod was deleted")
    eventually(lambda: world.ended == [143])
    assert world.heartbeat is not None
    assert world.heartbeat.error == f"it received SIGTERM; the pod was deleted; {drained}"


def test_the_next_agent_follows_the_driver_of_the_last_one(world: World, eventually: Any) -> None:
    world.start()
    eventually(lambda: (found := world.folder.order()) and found.submission)
    world.start()  # the first one is as good as dead: it decides nothing while the driver is well
    world.write_report(batch=7)
    eventually(lambda: (found := world.heartbeat) and found.batch == 7)
    world.stop()
    eventually(lambda: (found := world.folder.order()) and found.stop)
    world.write_report(ended=DriverExit(0))
    world.cluster.state = DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0)
    eventually(lambda: world.ended == [0, 0])
    assert len(world.cluster.submitted) == 1


def test_a_changed_declaration_replaces_the_driver_once_it_has_ended(world: World, eventually: Any) -> None:
    first = world.start()
    order = eventually(lambda: (found := world.folder.order()) and found.submission and found)
    world.stop()
    eventually(lambda: (found := world.folder.order()) and found.stop)
    world.folder.put_order(dataclasses.replace(order, stop=None))
    world.requested = StopSignals()
    changed = world.spec.model_copy(update={"name": "other"})
    world.start(spec=changed)
    eventually(lambda: (found := world.folder.order()) and found.stop == "the declaration has changed")
    assert len(world.cluster.submitted) == 1
    world.write_report(ended=DriverExit(0))
    world.cluster.state = DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0)
    eventually(lambda: len(world.cluster.submitted) == 2)
    first.join(10)
    assert world.ended[:1] == [0]


def test_a_submission_without_a_response_is_repeated_under_another_id(world: World, eventually: Any) -> None:
    world.cluster.silent = 1000
    world.start()
    first = eventually(world.folder.order)
    eventually(
        lambda: (
            (found := world.heartbeat)
            and any("driver's submission is not confirmed yet: it did not respond" in n for n in found.notices)
        )
    )
    eventually(lambda: len(world.cluster.submitted) > 1)
    world.cluster.silent = 0
    eventually(lambda: (found := world.folder.order()) and found.submission)
    second = world.folder.order()
    assert second is not None
    assert first.id != second.id


def test_a_driver_whose_submission_got_no_response_is_followed_by_its_report(
    world: World, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.remote.agent_rules.SUBMISSION_TIMEOUT_S", 60.0)
    world.cluster.silent = 1
    world.start()
    order = eventually(world.folder.order)
    world.folder.write_report(order.id, DriverReport(1, None, "driver-late"))
    eventually(lambda: (found := world.folder.order()) and found.submission == "driver-late")
    assert len(world.cluster.submitted) == 1


def test_force_kills_until_the_cluster_reports_that_the_driver_is_gone(world: World, eventually: Any) -> None:
    world.start()
    eventually(lambda: (found := world.folder.order()) and found.submission)
    world.requested.force = True
    world.requested.wake.set()
    eventually(lambda: world.ended == [137])
    assert world.cluster.kills == 2
    order = world.folder.order()
    assert order is not None
    assert order.kill


def test_an_unavailable_storage_is_an_outage_and_does_not_end_the_agent(
    world: World, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start()
    eventually(lambda: (found := world.folder.order()) and found.submission)

    def away(*_: object) -> None:
        raise ConnectionError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(DriverFolder, "report", away)
        heartbeat = eventually(lambda: (found := world.heartbeat) and found.outage and found)
        assert "cannot read the driver's report: ConnectionError: no route" in heartbeat.outage
    eventually(lambda: (found := world.heartbeat) and found.outage is None)
    assert world.ended == []


def test_a_cluster_that_rejects_the_driver_ends_the_agent_with_the_error_of_the_cluster(
    world: World, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: ClusterDriver) -> str:
        raise EnvironmentUnusable("the cluster does not take the driver: no")

    monkeypatch.setattr(world.cluster, "submit", refuse)
    world.start()
    eventually(lambda: world.ended)
    assert isinstance(world.ended[0], EnvironmentUnusable), "and it is not taken for a storage that is away"


def test_an_agent_never_writes_over_the_order_of_another(world: World, eventually: Any) -> None:
    world.start()
    order = eventually(lambda: (found := world.folder.order()) and found.submission and found)
    other = dataclasses.replace(order, id="b" * 32, submission="driver-9")
    world.folder.put_order(other)
    world.stop()
    eventually(lambda: world.ended)
    assert isinstance(world.ended[0], Fenced)
    assert world.folder.order() == other


def test_a_note_of_another_agent_in_the_order_is_preserved(world: World, eventually: Any) -> None:
    world.start()
    order = eventually(lambda: (found := world.folder.order()) and found.submission and found)
    world.folder.put_order(dataclasses.replace(order, stop="a restart was asked for"))
    world.requested.force = True
    world.requested.wake.set()
    eventually(lambda: world.ended == [137])
    assert world.folder.order() == dataclasses.replace(order, stop="a restart was asked for", kill=True)


def test_two_agents_that_begin_at_once_order_one_driver(world: World, eventually: Any) -> None:
    """The second one looked before the first one had ordered."""
    world.start()
    order = eventually(lambda: (found := world.folder.order()) and found.submission and found)
    late = PollsTooEarly(world.folder)
    world.start(folder=late)
    eventually(lambda: late.polls > 2)
    assert world.folder.order() == order
    world.stop()
    eventually(lambda: (found := world.folder.order()) and found.stop)
    world.write_report(ended=DriverExit(0))
    world.cluster.state = DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0)
    eventually(lambda: world.ended == [0, 0])
    assert len(world.cluster.submitted) == 1


@pytest.mark.parametrize("changes", [{"id": "b" * 32}, {"stop": "a restart was asked for"}])
def test_a_driver_that_was_replaced_has_not_caught_up(world: World, eventually: Any, changes: dict[str, str]) -> None:
    world.start(until_caught_up=True)
    order = eventually(lambda: (found := world.folder.order()) and found.submission and found)
    world.write_report(ended=DriverExit(0))
    world.folder.put_order(dataclasses.replace(order, **changes))  # type: ignore[arg-type]
    world.cluster.state = DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0)
    eventually(lambda: world.ended)
    assert isinstance(world.ended[0], Fenced)


def test_a_driver_that_ended_by_itself_has_caught_up(world: World, eventually: Any) -> None:
    world.start(until_caught_up=True)
    eventually(lambda: (found := world.folder.order()) and found.submission)
    world.write_report(ended=DriverExit(0))
    world.cluster.state = DriverStatus(DriverState.SUCCEEDED, "the driver ended normally", 0)
    eventually(lambda: world.ended == [0])


def test_a_driver_that_ends_without_a_report_is_explained_by_the_end_of_its_log(world: World, eventually: Any) -> None:
    world.start()
    eventually(lambda: (found := world.folder.order()) and found.submission)
    world.cluster.state = DriverStatus(DriverState.FAILED, "the container exited with code 1", 1)
    eventually(lambda: world.ended == [1])
    ended = world.heartbeat
    assert ended is not None
    assert "the container exited with code 1; its log ends with: the JVM's last words" in str(ended.error)


class KubernetesApi(BaseHTTPRequestHandler):
    """Creates the requested pods, which run as soon as they exist, and deletes them."""

    pods: ClassVar[dict[str, dict[str, Any]]] = {}
    created: ClassVar[list[str]] = []

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status if self.headers["Authorization"] == "Bearer t" else 401)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        pod = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = pod["metadata"]["name"]
        self.created.append(name)
        self.pods[name] = {**pod, "status": {"phase": "Running"}}
        self._answer(201, pod)

    def do_GET(self) -> None:
        found = self.pods.get(self.path.rpartition("/")[2])
        self._answer(200 if found else 404, found or {"message": "not found"})

    def do_DELETE(self) -> None:
        length = int(self.headers["Content-Length"])
        self.rfile.read(length)
        self._answer(200, self.pods.pop(self.path.rpartition("/")[2], {}))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def kubernetes() -> Iterator[tuple[type[KubernetesApi], str]]:
    """Yield a Kubernetes API server and its HTTP address."""
    api = type("Api", (KubernetesApi,), {"pods": {}, "created": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), api) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield api, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_drivers_in_pods_are_created_followed_stopped_and_replaced_without_java(
    world: World,
    kubernetes: tuple[type[KubernetesApi], str],
    eventually: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, address = kubernetes
    config = {
        "current-context": "k",
        "contexts": [{"name": "k", "context": {"cluster": "k", "user": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://an.address.of.another.network"}}],
        "users": [{"name": "k", "user": {"tokenFile": "token"}}],
    }
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    spark = {"spark.kubernetes.container.image": "frazil:1", "spark.kubernetes.namespace": "lake"}
    resources = Resources.model_validate({"master": f"k8s://{address}", "spark": spark})
    spec = world.spec.model_copy(update={"resources": resources})
    world.cluster = create_submitter(resources)  # type: ignore[assignment]

    first = world.start(spec=spec)
    name = eventually(lambda: (found := world.folder.order()) and found.submission)
    assert api.pods[name]["metadata"]["namespace"] == "lake"
    eventually(lambda: (found := world.heartbeat) and f"driver {name}: the pod is running" in found.notices)
    world.write_report(batch=7)
    eventually(lambda: (found := world.heartbeat) and found.batch == 7)
    world.stop()
    eventually(lambda: (found := world.folder.order()) and found.stop)
    world.write_report(ended=DriverExit(0))
    api.pods[name]["status"] = {"phase": "Succeeded"}
    first.join(10)
    assert (world.ended, api.created) == ([0], [name])

    world.requested = StopSignals()
    second = world.start(spec=spec)
    other = eventually(lambda: (found := world.folder.order()) and found.submission != name and found.submission)
    eventually(lambda: list(api.pods) == [other])  # the former pod is deleted, once its log is no longer needed
    world.requested.force = True
    second.join(10)
    assert (world.ended, api.pods) == ([0, 137], {})
