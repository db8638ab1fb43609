"""The executor pods that Spark requests from a Kubernetes API for a driver in client mode."""

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

pytestmark = pytest.mark.soak

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
    """Accepts and stores each requested object; starts nothing."""

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
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield api, f"k8s://http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_client_mode_driver_requests_executors_with_memory_for_python(
    kubernetes: tuple[Api, str], eventually: Callable[..., Any]
) -> None:
    api, master = kubernetes
    command = [sys.executable, "-c", START, master]
    with subprocess.Popen(
        command,
        env={**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent), "KUBECONFIG": os.devnull},
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as driver:
        try:
            eventually(lambda: len(api.pods) == 2, within_s=120)
        finally:
            driver.communicate(timeout=60)
    for pod in api.pods.values():
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "frazil:1"
        assert container["resources"]["limits"]["memory"] == f"{512 + 2 * 1024}Mi"
        assert container["resources"]["requests"]["cpu"] == "2"
