"""Drivers in pods of a real Kubernetes: they start without Java on this host, end as asked, and survive faults."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from frazil.home import home
from tests.faults.exactness import check_exact

from .conftest import Supervised
from .node import NAMESPACE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

BAD = [b"not json", b"[]", None]
Events = Callable[[Iterable[int]], Iterator[bytes]]
Disruption = Callable[[Supervised], AbstractContextManager[None]]


def writes(supervised: Supervised, eventually: Any, count: int) -> None:
    def has_rows() -> bool:
        assert supervised.exit() is None
        return bool(supervised.stream.has_rows(count))

    eventually(has_rows, within_s=180)


def ended(supervised: Supervised, eventually: Any) -> tuple[int | None, str | None]:
    """Exit code and error of the agent, once it has ended."""
    found = eventually(supervised.exit, within_s=120)
    return found.code, found.error


def stop(supervised: Supervised, eventually: Any) -> None:
    supervised.launcher.stop(force=False)
    assert ended(supervised, eventually)[0] == 0


def test_a_driver_starts_without_java_survives_this_host_is_replaced_and_stops_on_request(
    supervised: Supervised, events: Events, eventually: Any
) -> None:
    supervised.stream.produce([*events(range(1000)), *BAD], partitions=4)
    supervised.launch()
    writes(supervised, eventually, 1000)
    first = supervised.driver()
    owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in supervised.node.pods("executor")}
    assert owners == {first["metadata"]["uid"]}
    eventually(lambda: "committed" in supervised.log())
    # The host of the triggerer goes, with everything of FRAZIL_HOME.
    for process in supervised.processes("write_stream.py", str(supervised.stream.streams)):
        process.kill()
    eventually(supervised.exit)
    shutil.rmtree(home())
    supervised.stream.produce(events(range(1000, 2000)), partitions=4)
    supervised.launch()
    writes(supervised, eventually, 2000)
    eventually(lambda: f"driver {first['metadata']['name']}: the pod is running" in supervised.notices())
    stop(supervised, eventually)
    log = supervised.node.kubectl("logs", first["metadata"]["name"], "--namespace", NAMESPACE)
    assert "forbidden" not in log.lower(), log  # the Role of deploy/ suffices for Spark, too
    # Another declaration: another pod, and the former one goes.
    supervised.declare(**{"spark.kubernetes.driver.label.team": "lake"})
    supervised.stream.produce(events(range(2000, 3000)), partitions=4)
    supervised.launch()
    writes(supervised, eventually, 3000)
    (pod,) = supervised.node.pods("driver")
    assert pod["metadata"]["labels"]["team"] == "lake"
    stop(supervised, eventually)
    check_exact(supervised.stream, range(3000), rejected=BAD)


@pytest.mark.parametrize("what", ["process", "pod", "executor"])
def test_a_killed_driver_process_or_pod_is_reported_and_the_next_driver_continues(
    supervised: Supervised, events: Events, eventually: Any, what: str
) -> None:
    supervised.stream.produce(events(range(1000)), partitions=4)
    supervised.launch()
    writes(supervised, eventually, 1000)
    order = supervised.order()
    if what == "process":
        (process,) = supervised.processes("frazil.spark_apps.drive_stream", order.id)
        process.kill()
        code, error = ended(supervised, eventually)
        assert (code, "the container exited with code 137" in str(error)) == (137, True), error
    elif what == "pod":
        words = ("pod", order.submission, "--namespace", NAMESPACE, "--grace-period=0", "--force")
        supervised.node.kubectl("delete", *words)
        # It got SIGTERM, which is a stop. Whether it could report its end before SIGKILL is a matter of luck.
        assert ended(supervised, eventually)[0] in {1, 143}
        assert f"the pod {order.submission} in the namespace {NAMESPACE} was deleted" in supervised.log()
    else:
        supervised.processes("KubernetesExecutorBackend")[0].kill()
    supervised.stream.produce(events(range(1000, 2000)), partitions=4)
    if what != "executor":
        supervised.launch()
    writes(supervised, eventually, 2000)
    assert (supervised.order().id == order.id) == (what == "executor")
    stop(supervised, eventually)
    check_exact(supervised.stream, range(2000))


@contextmanager
def api_away(supervised: Supervised) -> Iterator[None]:
    (server,) = supervised.processes("kube-apiserver", str(supervised.node.folder))
    server.send_signal(signal.SIGSTOP)
    yield
    server.send_signal(signal.SIGCONT)


def test_a_driver_writes_while_the_kubernetes_api_is_away_and_is_created_once_it_is_back(
    supervised: Supervised, events: Events, eventually: Any
) -> None:
    with api_away(supervised):
        supervised.launch()
        eventually(lambda: "the Kubernetes API" in supervised.notices(), within_s=60)
    supervised.stream.produce(events(range(1000)), partitions=4)
    writes(supervised, eventually, 1000)
    assert len(supervised.node.pods("driver")) == 1
    with api_away(supervised):
        supervised.stream.produce(events(range(1000, 2000)), partitions=4)
        writes(supervised, eventually, 2000)
        eventually(lambda: "the Kubernetes API did not respond in time" in supervised.notices())
    stop(supervised, eventually)
    check_exact(supervised.stream, range(2000))


def test_status_shows_why_a_pod_does_not_start(supervised: Supervised, eventually: Any) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": NAMESPACE},
        "spec": {"hard": {"pods": "0"}},
    }
    supervised.node.kubectl("apply", "--filename", "-", stdin=json.dumps(quota))
    supervised.declare(**{"spark.kubernetes.container.image": "registry.invalid/frazil:1"})
    supervised.launch()
    eventually(lambda: "exceeded quota: none" in supervised.notices(), within_s=60)
    supervised.node.kubectl("delete", "resourcequota", "none", "--namespace", NAMESPACE)
    eventually(lambda: "the image cannot be pulled" in supervised.notices(), within_s=120)
    assert "the image cannot be pulled" in supervised.frazil("status")
    # A pod that has not started is deleted by a stop.
    stop(supervised, eventually)
    assert supervised.node.pods("driver") == []


def test_a_driver_without_enough_memory_reports_it(supervised: Supervised, eventually: Any) -> None:
    supervised.declare(**{"spark.driver.memoryOverhead": "1m", "spark.driver.memory": "60m"})
    supervised.launch()
    code, error = ended(supervised, eventually)
    assert (code, "exceeded its memory limit: raise resources.driver-memory" in str(error)) == (137, True), error


@contextmanager
def too_little_memory(supervised: Supervised) -> Iterator[None]:
    """Make kubelet think that the node has too little memory. It then evicts one pod after another."""

    def restart_kubelet(reserve: str) -> None:
        supervised.node.set_memory_reserve(reserve)
        (kubelet,) = supervised.processes(f"kubelet --kubeconfig={supervised.node.folder}")
        kubelet.kill()

    restart_kubelet("99%")  # kubelet ignores 100%
    try:
        yield
    finally:
        restart_kubelet("200Mi")


@contextmanager
def full_volume(supervised: Supervised) -> Iterator[None]:
    program = ("dd", "if=/dev/zero", "of=/scratch/x", "bs=1M", "count=8")
    supervised.node.kubectl("exec", supervised.order().submission, "--namespace", NAMESPACE, "--", *program)
    yield


@contextmanager
def drained(supervised: Supervised) -> Iterator[None]:
    """Evict the driver's pod through the API, as `kubectl drain` does."""
    name = supervised.order().submission
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    supervised.node.kubectl("create", "--raw", path, "--filename", "-", stdin=json.dumps(eviction))
    yield


@contextmanager
def restarted(supervised: Supervised) -> Iterator[None]:
    supervised.node.restart()
    yield


@pytest.mark.parametrize(
    ("disrupt", "cause"),
    [
        (too_little_memory, "The node was low on resource: memory"),
        (full_volume, 'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi"'),
        (drained, "was deleted|Eviction API: evicting"),  # the node may delete the pod before or after its last report
        (restarted, "the container exited with code"),
    ],
    ids=["memory", "volume", "drain", "node restart"],
)
def test_a_driver_that_its_node_ends_is_reported_with_the_cause_and_the_next_one_continues(
    supervised: Supervised, events: Events, eventually: Any, disrupt: Disruption, cause: str
) -> None:
    volume = "spark.kubernetes.driver.volumes.emptyDir.scratch"
    supervised.declare(**{f"{volume}.mount.path": "/scratch", f"{volume}.options.sizeLimit": "1Mi"})
    supervised.stream.produce(events(range(1000)), partitions=4)
    supervised.launch()
    writes(supervised, eventually, 1000)
    with disrupt(supervised):
        code, error = ended(supervised, eventually)
    assert code
    assert re.search(cause, str(error)), error
    assert re.search(cause, supervised.frazil("status"))
    supervised.stream.produce(events(range(1000, 2000)), partitions=4)
    supervised.launch()
    writes(supervised, eventually, 2000)
    stop(supervised, eventually)
    check_exact(supervised.stream, range(2000))


def test_a_driver_that_ends_before_its_first_report_is_explained_by_its_log(
    supervised: Supervised, eventually: Any
) -> None:
    without = {"spark.kubernetes.driverEnv.PYTHONPATH": "/nowhere", "spark.pyspark.python": "/usr/bin/python3"}
    supervised.declare(**without)
    supervised.launch()
    code, error = ended(supervised, eventually)
    assert code == 1
    assert "its log ends with: " in str(error)
    assert "No module named 'frazil'" in str(error)


def test_the_role_of_deploy_grants_nothing_else(supervised: Supervised) -> None:
    account = f"system:serviceaccount:{NAMESPACE}:frazil-writers"
    for verb, kind, namespace in (
        ("get", "secrets", NAMESPACE),
        ("create", "pods", "default"),
        ("create", "roles", NAMESPACE),
    ):
        with pytest.raises(AssertionError):  # kubectl ends with 1 after a no
            supervised.node.kubectl("auth", "can-i", verb, kind, "--namespace", namespace, "--as", account)
