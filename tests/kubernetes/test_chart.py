"""The Helm chart of `deploy/` on a real Kubernetes: writers and maintenance without Airflow."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.exactness import check_exact

from .conftest import Supervised
from .node import CHECKOUT, IMAGE, NAMESPACE, Node, pod_environment, pod_mounts, what_is_missing

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(what_is_missing("helm")), reason=str(what_is_missing("helm"))),
]

CHART = CHECKOUT / "deploy/chart"
ARCHIVE = "FRAZIL_IMAGE_ARCHIVE"
"""The variable with an archive of the Dockerfile's image, named `localhost/frazil:0.1.0` (`podman save`). Without it,
the pods run this machine's programs.
"""


@pytest.fixture
def install(supervised: Supervised, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Install the chart, or upgrade it, with the stream's declaration as it is now."""
    node, stream = supervised.node, supervised.stream
    node.kubectl("delete", "--filename", str(CHART / "permissions.yaml"), "--ignore-not-found")
    catalog = {name: value for name, value in os.environ.items() if name.startswith("PYICEBERG_")}
    if archive := os.environ.get(ARCHIVE):
        node.load(Path(archive))
        image, mounts, environment = "localhost/frazil:0.1.0", {"run": tmp_path}, catalog
    else:
        image, mounts = IMAGE, pod_mounts(tmp_path)
        environment = pod_environment() | catalog | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}

    def run() -> None:
        values = {
            "streams": {stream.name: (stream.streams / f"{stream.name}.yaml").read_text()},
            "writers": [stream.name],
            "maintain": {"tables": [f"test.{stream.name}"]},
            "image": dict(zip(("repository", "tag"), image.split(":"), strict=True)),
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "resources": {"requests": {"cpu": "0.2", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
            # Tables, and without an archive also programs, are files of this machine's root.
            "podSecurityContext": {"runAsUser": 0, "runAsNonRoot": False},
            "volumes": [{"name": name, "hostPath": {"path": str(path)}} for name, path in mounts.items()],
            "volumeMounts": [{"name": name, "mountPath": str(path)} for name, path in mounts.items()],
        }
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
        node.helm(
            "upgrade",
            "--install",
            "frazil",
            str(CHART),
            "--namespace",
            NAMESPACE,
            "--values",
            str(tmp_path / "values.yaml"),
        )

    try:
        yield run
    finally:
        print(node.kubectl("get", "pods", "--namespace", NAMESPACE, "--output", "wide"))
        node.helm("uninstall", "frazil", "--namespace", NAMESPACE, "--ignore-not-found", "--wait")
        node.kubectl("apply", "--filename", str(CHART / "permissions.yaml"))


def writer_pods(node: Node) -> list[str]:
    found = node.kubectl("get", "pods", "--namespace", NAMESPACE, "--selector", "frazil-stream", "--output", "name")
    return found.split()


def test_the_chart_runs_a_writer_replaces_it_for_another_declaration_and_maintains_its_table(
    supervised: Supervised, install: Callable[[], None], events: Any, eventually: Any
) -> None:
    stream, node = supervised.stream, supervised.node
    stream.declare()
    stream.produce(events(range(1000)), partitions=4)
    install()
    eventually(lambda: stream.has_rows(1000), within_s=240)
    (first,) = writer_pods(node)
    for process in supervised.processes("bin/frazil", "run", stream.name):
        process.kill()  # kubelet starts the container again
    stream.produce(events(range(1000, 2000)), partitions=4)
    eventually(lambda: stream.has_rows(2000), within_s=240)
    assert writer_pods(node) == [first]

    stream.declare("commit: {interval: 2s}\n")
    install()
    eventually(lambda: writer_pods(node) and writer_pods(node) != [first], within_s=180)
    stream.produce(events(range(2000, 3000)), partitions=4)
    eventually(lambda: stream.has_rows(3000), within_s=240)

    (job,) = node.kubectl("get", "cronjobs", "--namespace", NAMESPACE, "--output", "name").split()
    node.kubectl("create", "job", "now", "--namespace", NAMESPACE, f"--from={job}")
    node.kubectl("wait", "job/now", "--namespace", NAMESPACE, "--for=condition=complete", "--timeout=110s")
    assert "compaction" in node.kubectl("logs", "job/now", "--namespace", NAMESPACE)
    check_exact(stream, range(3000))


def test_the_helm_chart_refuses_a_writer_without_a_declaration(node: Node) -> None:
    with pytest.raises(AssertionError, match="writers names the stream rides, but streams has no declaration of it"):
        node.helm("template", str(CHART), "--set", "writers[0]=rides")


def test_the_chart_has_no_complaint_of_helms_linter(node: Node) -> None:
    assert "0 chart(s) failed" in node.helm("lint", str(CHART), "--strict")
