"""The pods that Spark asks a Kubernetes API for: drivers in cluster mode, executors of a driver in client mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyspark
import pytest

from frazil.cluster.kubernetes import CONTAINER
from frazil.cluster.submission import (
    ClusterDriver,
    pod_name,
    properties_text,
    submit_command,
    submit_environment,
    submit_properties,
)
from frazil.spec.resources import Resources

pytestmark = pytest.mark.soak

SPARK_HOME = Path(pyspark.__file__).parent
LAUNCH = "0123456789abcdef0123456789abcdef"
START = """
import sys
from frazil.spec.model import StreamSpec
from frazil.stream.session import start_context

declared = {
    "name": "s",
    "source": {"bootstrap-servers": "x:1", "topics": "t"},
    "table": "a.b",
    "schema": {"at": "timestamptz"},
    "event-time": "at",
    "resources": {
        "master": sys.argv[1],
        "cores": 4,
        "executor-cores": 2,
        "spark": {"spark.kubernetes.container.image": "frazil:1", "spark.kubernetes.namespace": "lake"},
    },
}
context = start_context(StreamSpec.model_validate(declared))
sys.stdin.read()
context.stop()
"""


class Api:
    """Accepts what it is asked to make, and keeps it; starts nothing."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        kind = path.partition("?")[0].rpartition("/")[2]
        if body is None or "metadata" not in body:
            if kind in {"pods", "configmaps", "services", "persistentvolumeclaims"}:
                return 200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
            return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}
        name = body["metadata"]["name"]
        if method == "POST" and name in self.pods:
            said = f'pods "{name}" already exists'
            return 409, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409, "message": said}
        if body.get("kind") == "Pod":
            self.pods[name] = body
        return 201, {**body, "metadata": {**body["metadata"], "uid": name, "resourceVersion": "1"}}


@pytest.fixture
def kubernetes() -> Iterator[tuple[Api, str]]:
    """A Kubernetes API and its address."""
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, found = api.answer(self.command, self.path, body)
            text = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield api, f"k8s://http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def environment() -> dict[str, str]:
    return submit_environment(SPARK_HOME, {**os.environ, "KUBECONFIG": os.devnull})


def test_the_drivers_pod_is_named_by_its_launch_has_no_secret_and_is_made_once(
    kubernetes: tuple[Api, str], tmp_path: Path
) -> None:
    api, master = kubernetes
    spark = {
        "spark.kubernetes.namespace": "lake",
        "spark.kubernetes.container.image": "frazil:1",
        "spark.kubernetes.driver.secretKeyRef.KAFKA_PASSWORD": "kafka:password",
        "spark.kubernetes.authenticate.driver.serviceAccountName": "frazil-writers",
    }
    resources = Resources.model_validate({"master": master, "spark": spark})
    program, secret = "local:///opt/frazil/write_stream.py", {"KAFKA_PASSWORD": "hush"}
    driver = ClusterDriver("ticks", LAUNCH, program, ("ticks", "--streams", "/streams"), resources, secret)
    file = tmp_path / "driver.properties"
    file.write_text(properties_text(submit_properties(driver)))
    command = submit_command(SPARK_HOME, file, driver)

    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    pod = api.pods[pod_name(driver)]
    assert "hush" not in json.dumps(pod)
    assert (pod["spec"]["restartPolicy"], pod["spec"]["serviceAccountName"]) == ("Never", "frazil-writers")
    assert pod["metadata"]["labels"]["frazil-launch"] == LAUNCH
    (container,) = pod["spec"]["containers"]
    assert (container["name"], container["image"]) == (CONTAINER, "frazil:1")
    assert container["args"][-4:] == [program, "ticks", "--streams", "/streams"]
    assert container["resources"]["limits"]["memory"] == "2048Mi"
    assert {"name": "kafka", "key": "password"} in [
        each["valueFrom"]["secretKeyRef"] for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})
    ]

    again = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode != 0
    assert "already exists" in again.stderr
    assert len(api.pods) == 1


def test_a_driver_in_client_mode_asks_for_executors_with_room_for_their_python(
    kubernetes: tuple[Api, str], eventually: Callable[..., Any]
) -> None:
    api, master = kubernetes
    command = [sys.executable, "-c", START, master]
    with subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as driver:
        try:
            eventually(lambda: len(api.pods) == 2, within_s=120)
        finally:
            driver.communicate(timeout=60)
    for pod in api.pods.values():
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "frazil:1"
        assert container["resources"]["limits"]["memory"] == f"{512 + 2 * 1024}Mi"
        assert container["resources"]["requests"]["cpu"] == "2"
