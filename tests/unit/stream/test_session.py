"""The Spark settings of a writer, on this host and on a cluster."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from frazil.cluster.driver import HADOOP_FOLDER_VARIABLES
from frazil.errors import EnvironmentUnusable
from frazil.spec.model import StreamSpec
from frazil.stream.session import executors_python, start_context, writer_properties


def spec(**resources: Any) -> StreamSpec:
    return StreamSpec.model_validate(
        {
            "name": "s",
            "source": {"bootstrap-servers": "x:1", "topics": "t"},
            "table": "a.b",
            "schema": {"at": "timestamptz"},
            "event-time": "at",
            "resources": resources,
        }
    )


def test_without_a_declared_master_spark_runs_locally_on_the_loopback() -> None:
    found = writer_properties(spec(cores=3))
    assert found["spark.master"] == "local[3,4]"
    assert found["spark.driver.host"] == "127.0.0.1"
    assert "spark.cores.max" not in found


def test_executors_on_a_cluster_have_the_declared_resources_and_lean_jvm_options() -> None:
    found = writer_properties(
        spec(master="spark://h:7077", cores=4, **{"executor-cores": 2, "executor-memory": "1GiB"})
    )
    assert found["spark.master"] == "spark://h:7077"
    assert (found["spark.cores.max"], found["spark.executor.cores"]) == ("4", "2")
    assert found["spark.executor.memory"] == "1024m"
    assert "UseSerialGC" in found["spark.executor.extraJavaOptions"]
    assert found["spark.python.daemon.module"] == "frazil.stream.worker_daemon"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://h:6443"])
def test_executor_containers_have_memory_for_python_in_addition_to_the_heap(master: str) -> None:
    image = {"spark.kubernetes.container.image": "i"}
    found = writer_properties(spec(master=master, cores=6, spark=image, **{"executor-cores": 3}))
    assert found["spark.master"] == master
    assert (found["spark.executor.instances"], found["spark.executor.cores"]) == ("2", "3")
    assert (found["spark.executor.memory"], found["spark.executor.memoryOverhead"]) == ("512m", "3072m")
    assert "spark.cores.max" not in found


def test_a_writer_on_yarn_without_hadoop_configuration_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HADOOP_FOLDER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvironmentUnusable, match=r"HADOOP_CONF_DIR is not set\. Set it for"):
        start_context(spec(master="yarn"))


@pytest.mark.parametrize(
    ("master", "is_here"),
    [
        ("spark://127.0.0.1:1", True),
        ("spark://localhost:1,127.0.0.2:1", True),
        ("spark://127.0.0.1:1,h:1", False),
        ("spark://10.0.0.1:1", False),
        ("yarn", False),
    ],
)
def test_a_driver_listens_on_loopback_only_if_its_executors_are_local(master: str, is_here: bool) -> None:
    assert ("spark.driver.host" in writer_properties(spec(master=master))) is is_here


def test_a_declaration_overrides_spark_properties() -> None:
    declared = {"spark.driver.host": "driver.example", "spark.task.maxFailures": "8"}
    found = writer_properties(spec(master="spark://127.0.0.1:1", spark=declared))
    assert declared.items() <= found.items()


def test_executors_run_the_packages_python_and_the_driver_its_own() -> None:
    packed = spec(master="spark://h:1", package="s3://lake/frazil.tar.gz")
    found = writer_properties(packed)
    assert found["spark.archives"] == "s3://lake/frazil.tar.gz#frazil-package"
    assert executors_python(packed, found) == "./frazil-package/bin/python"
    assert executors_python(spec(), {}) == sys.executable
    assert executors_python(packed, {"spark.pyspark.python": "/opt/python"}) == "/opt/python"


def test_a_driver_in_a_pod_has_the_pods_name_and_address_whatever_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = {"spark.kubernetes.container.image": "i", "spark.driver.host": "elsewhere"}
    declared = spec(master="k8s://https://10.0.0.1:6443", spark=spark)
    assert writer_properties(declared)["spark.driver.host"] == "elsewhere"
    monkeypatch.setenv("FRAZIL_POD_NAME", "frazil-s-driver")
    monkeypatch.setenv("FRAZIL_POD_IP", "10.244.0.7")
    found = writer_properties(declared)
    assert found["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert found["spark.kubernetes.driver.pod.name"] == "frazil-s-driver"
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "10.244.0.7"
