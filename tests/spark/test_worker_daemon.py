"""The process from which Spark's Python workers are forked."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest

from frazil.spec.load import find_stream
from frazil.stream import worker_daemon
from frazil.stream.session import writer_properties

LOOK = """
import json, os, sys, threading
before = len(os.listdir("/proc/self/fd"))
from frazil.stream.worker_daemon import STAGE_MODULE, preload
preload()
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")),
    "files": len(os.listdir("/proc/self/fd")) - before,
    "stage": STAGE_MODULE in sys.modules,
    "worker": "pyspark.worker" in sys.modules,
    "kafka": "confluent_kafka" in sys.modules,
    "loops": "frazil.ingest.kafka_columns" in sys.modules,
    "json": "frazil.ingest.formats.json.rows" in sys.modules,
}))
"""


def checked(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.skipif(not psutil.LINUX, reason="threads and files are counted in /proc")
def test_the_worker_daemon_preloads_staging_code_but_has_no_threads_or_connections_to_fork():
    found = json.loads(checked(LOOK).stdout)
    assert found == {
        "threads": 1,
        "files": 0,
        "stage": True,
        "worker": True,
        "kafka": True,
        "loops": True,
        "json": True,
    }


def test_the_worker_daemon_reports_its_port_and_forks_one_worker_per_connection():
    command = [sys.executable, "-m", worker_daemon.MODULE, "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        (port,) = struct.unpack("!i", daemon.stdout.read(4))
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        pids = [struct.unpack("!i", connection.recv(4))[0] for connection in connections]
        assert sorted(pids) == sorted(child.pid for child in psutil.Process(daemon.pid).children())
        for connection in connections:
            connection.close()
        daemon.stdin.close()
        daemon.wait(30)


def test_the_worker_daemon_reports_a_failed_import_and_continues():
    done = checked(
        "from frazil.stream import worker_daemon as d; d.STAGE_MODULE = 'frazil.gone'; d.preload(); print('on')"
    )
    assert done.stdout == "on\n"
    assert "No module named 'frazil.gone'" in done.stderr


def test_installed_packages_take_precedence_over_sparks_archives_without_compiled_code():
    archives = ":".join(map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")))
    assert archives.count(".zip") == 2
    program = "from frazil.stream.worker_daemon import preload; preload(); import pyspark, py4j; "
    shown = checked(program + "print(pyspark.__file__, py4j.__file__)", PYTHONPATH=archives).stdout
    assert ".zip" not in shown


def test_no_archive_of_spark_is_read_again_before_each_task():
    spark = Path(pyspark.__file__).parent
    archives = [*(spark / "python" / "lib").glob("*.zip"), *(spark / "jars").glob("spark-core_*.jar")]
    assert len(archives) == 3
    program = "import sys; from frazil.stream.worker_daemon import preload; preload(); print(*sys.path_importer_cache)"
    shown = checked(program, PYTHONPATH=":".join([*map(str, archives), os.environ.get("PYTHONPATH", "")])).stdout
    assert not {path for path in shown.split() if path.startswith(str(spark)) and (".zip" in path or ".jar" in path)}


def test_without_an_installed_pyspark_the_archives_stay_on_the_path(monkeypatch: pytest.MonkeyPatch):
    path = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-0.10.9.9-src.zip", "/nowhere"]
    monkeypatch.setattr(sys, "path", list(path))
    worker_daemon._remove_archives_from_path()
    assert sys.path == path


def test_writers_configure_frazils_worker_daemon_in_spark():
    flights = find_stream(Path(__file__).parents[2] / "include" / "streams", "flights")
    assert writer_properties(flights)["spark.python.daemon.module"] == "frazil.stream.worker_daemon"
