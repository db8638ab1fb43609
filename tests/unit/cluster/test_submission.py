"""The arguments of spark-submit, as Spark accepted them on YARN of Hadoop 3.4.2."""

from __future__ import annotations

from typing import Any

from frazil.cluster.driver import (
    ClusterDriver,
    build_submit_properties,
    format_properties,
)
from frazil.spec.resources import Resources

LAUNCH = "0123456789abcdef0123456789abcdef"


def driver(environment: dict[str, str] | None = None, *, name: str = "ticks", **resources: Any) -> ClusterDriver:
    declared = Resources.model_validate(resources)
    return ClusterDriver(name, LAUNCH, "/opt/write_stream.py", ("ticks",), declared, environment or {})


def test_yarn_starts_a_driver_once_with_the_packages_python() -> None:
    found = build_submit_properties(driver({"KAFKA_PASSWORD": "hush"}, master="yarn", package="hdfs:///frazil.tar.gz"))
    assert found == {
        "spark.app.name": "frazil ticks",
        "spark.driver.memory": "1024m",
        "spark.driver.memoryOverhead": "1024m",
        "spark.archives": "hdfs:///frazil.tar.gz#frazil-package",
        "spark.yarn.appMasterEnv.KAFKA_PASSWORD": "hush",
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": "./frazil-package/bin/python",
        "spark.master": "yarn",
        "spark.submit.deployMode": "cluster",
        "spark.yarn.submit.waitAppCompletion": "false",
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.tags": f"frazil-{LAUNCH}",
    }


def test_a_declaration_wins_except_for_the_address_of_the_driver() -> None:
    declared = {"spark.driver.memory": "3g", "spark.yarn.maxAppAttempts": "5", "spark.submit.deployMode": "client"}
    found = build_submit_properties(driver(master="yarn", spark=declared))
    assert found["spark.driver.memory"] == "3g"
    assert (found["spark.yarn.maxAppAttempts"], found["spark.submit.deployMode"]) == ("1", "cluster")


def test_special_characters_of_java_properties_are_escaped() -> None:
    found = format_properties({"a b:c=d": " x\\y\nz#=: ", "#k": "v"})
    assert found == "a\\ b\\:c\\=d=\\ x\\\\y\\nz#=: \n\\#k=v\n"
