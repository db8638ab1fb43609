"""A driver to submit, and spark-submit's command, environment and properties for YARN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from frazil.errors import SpecError
from frazil.spec.resources import ClusterManager, Resources

PACKAGE_FOLDER = "frazil-package"
"""The folder, in each process's working directory, into which Spark unpacks the archive of `frazil package`."""
PACKAGE_PYTHON = f"./{PACKAGE_FOLDER}/bin/python"
PYTHON_OVERHEAD_MIB = 1024
"""Memory of the driver's container for Python, in addition to the JVM's heap."""


@dataclass(frozen=True, slots=True)
class ClusterDriver:
    application: str
    launch_id: str
    """32 hexadecimal digits that identify the launch.

    Kubernetes refuses to submit the same launch twice. YARN finds the driver of a launch by this id.
    """
    program: str
    """A Python file of `frazil.spark_apps` on this host. On Kubernetes, the image has the same module."""
    arguments: tuple[str, ...]
    resources: Resources
    environment: Mapping[str, str]
    """The driver's environment variables. On YARN, they may contain secrets, and are passed in the properties file."""


def build_submit_command(spark_home: Path, properties_file: Path, driver: ClusterDriver) -> tuple[str, ...]:
    """Return the spark-submit command, which ends when the cluster has accepted the driver."""
    submit = str(spark_home / "bin" / "spark-submit")
    return (submit, "--properties-file", str(properties_file), driver.program, *driver.arguments)


def build_submit_environment(spark_home: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with SPARK_HOME. Without it, spark-submit would use the first Python on PATH."""
    return {**base, "SPARK_HOME": str(spark_home)}


def build_submit_properties(driver: ClusterDriver) -> dict[str, str]:
    """Return spark-submit's properties. `resources.spark` overrides all but the driver's identity. Raises SpecError."""
    resources = driver.resources
    common = {
        "spark.app.name": f"frazil {driver.application}",
        "spark.driver.memory": f"{max(1, resources.driver_memory // 2**20)}m",
        "spark.driver.memoryOverhead": f"{PYTHON_OVERHEAD_MIB}m",
    }
    if resources.package:
        common["spark.archives"] = f"{resources.package}#{PACKAGE_FOLDER}"
    fixed = {"spark.master": resources.master, "spark.submit.deployMode": "cluster"}
    if resources.manager is ClusterManager.YARN:
        python = {"PYSPARK_PYTHON": PACKAGE_PYTHON} if resources.package else {}
        environment = {**driver.environment, **python}
        return {
            **common,
            **{f"spark.yarn.appMasterEnv.{name}": value for name, value in environment.items()},
            **resources.spark,
            **fixed,
            "spark.yarn.submit.waitAppCompletion": "false",
            # The supervisor decides whether a writer is restarted.
            "spark.yarn.maxAppAttempts": "1",
            "spark.yarn.tags": yarn_tag(driver),
        }
    raise SpecError(f"application {driver.application}: {resources.master} does not accept drivers from spark-submit")


def format_properties(properties: Mapping[str, str]) -> str:
    """Return the properties as the text of a `java.util.Properties` file."""
    return "".join(f"{_escape(key, in_key=True)}={_escape(value)}\n" for key, value in properties.items())


def yarn_tag(driver: ClusterDriver) -> str:
    """Return the tag that identifies a launch if spark-submit ended before it printed the application's id."""
    return f"frazil-{driver.launch_id}"


def _escape(text: str, *, in_key: bool = False) -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    if in_key:
        special |= {each: f"\\{each}" for each in " :=#!"}
    found = "".join(special.get(each, each) for each in text)
    return f"\\{found}" if found.startswith(" ") else found
