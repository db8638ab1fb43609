"""Submits drivers to each kind of cluster, and finds drivers that were submitted earlier."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from frazil.cluster import standalone
from frazil.cluster.driver import (
    HADOOP_FOLDER_VARIABLES,
    ApiUnavailable,
    ClusterDriver,
    Driver,
    DriverState,
    build_submit_properties,
    format_properties,
    yarn_tag,
)
from frazil.cluster.kubernetes import DriverPod, find_access
from frazil.cluster.kubernetes_pod import build_pod, pod_name
from frazil.cluster.yarn import YarnDriver, find_application, parse_application_id, read_resource_managers
from frazil.errors import EnvironmentUnusable
from frazil.spark.java import LEAN_OPTIONS, require_java, require_pyspark
from frazil.spec.resources import ClusterManager, Resources

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT_S = 300.0
"""Timeout of spark-submit, which may upload a package of hundreds of megabytes."""


class SubmitFailed(EnvironmentUnusable):
    """spark-submit failed. The cluster may have accepted the driver before that."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


class Submitter(Protocol):
    def submit(self, driver: ClusterDriver) -> str:
        """Submit a driver, and return its name in the cluster. Raises SpecError and EnvironmentUnusable."""

    def find(self, driver: ClusterDriver) -> str | None:
        """Return the name of a driver whose submission had no response, or None. Never raises an error."""

    def open(self, submission: str) -> Driver:
        """Return the driver with this name in the cluster."""


def create_submitter(resources: Resources) -> Submitter:
    """Return the submitter for the cluster of `resources.master`. Raises EnvironmentUnusable."""
    if resources.manager is ClusterManager.STANDALONE:
        return StandaloneSubmitter(resources)
    if resources.manager is ClusterManager.KUBERNETES:
        return KubernetesSubmitter(resources, os.environ)
    require_java()
    return YarnSubmitter(os.environ)


class StandaloneSubmitter:
    """Uses the REST servers of Spark's masters. They do not list drivers, so a driver reports its own id."""

    def __init__(self, resources: Resources) -> None:
        self._addresses = standalone.rest_addresses(resources.master, resources.rest_port)

    def submit(self, driver: ClusterDriver) -> str:
        import pyspark  # an extra

        path = driver.resources.spark.get("spark.pyspark.driver.python", sys.executable)
        # Spark loads conf/spark-env.sh of the worker unless these say that it was loaded.
        python = {"PYSPARK_PYTHON": path, "PYSPARK_DRIVER_PYTHON": path, "PYTHONUNBUFFERED": "1"}
        request = standalone.build_request(
            driver.program,
            driver.arguments,
            properties=_standalone_properties(driver),
            environment={**driver.environment, **python},
            spark_version=pyspark.__version__,
        )
        try:
            return standalone.submit(self._addresses, request)
        except ApiUnavailable:
            # Begin the next submission with another master: this one may hang for hours.
            self._addresses = (*self._addresses[1:], *self._addresses[:1])
            raise

    def find(self, driver: ClusterDriver) -> str | None:  # noqa: ARG002 - see the interface
        return None

    def open(self, submission: str) -> Driver:
        return standalone.StandaloneDriver(submission, addresses=self._addresses)


def _standalone_properties(driver: ClusterDriver) -> dict[str, str]:
    return {
        **driver.common_properties,
        "spark.driver.extraJavaOptions": LEAN_OPTIONS,
        # Properties are on the driver's command line, so the driver itself resolves those with references.
        **{key: value for key, value in driver.resources.spark.items() if "${" not in value},
        "spark.master": driver.resources.master,
    }


class YarnSubmitter:
    """Runs spark-submit, and queries the ResourceManagers configured in HADOOP_CONF_DIR."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        folder = next((environment[name] for name in HADOOP_FOLDER_VARIABLES if environment.get(name)), None)
        if folder is None:
            text = "resources.master is yarn, but HADOOP_CONF_DIR is not set: set it in the environment of the writer"
            raise EnvironmentUnusable(text)
        self._addresses = read_resource_managers(Path(folder))
        self._user = environment.get("HADOOP_USER_NAME") or environment.get("USER")

    def submit(self, driver: ClusterDriver) -> str:
        try:
            output = run_spark_submit(driver)
        except SubmitFailed as failed:
            return self._find_accepted_application(driver, failed)
        if application := parse_application_id(output):
            return application
        raise ApiUnavailable("spark-submit succeeded, but did not print the application's id")

    def _find_accepted_application(self, driver: ClusterDriver, failed: SubmitFailed) -> str:
        """Return the application that YARN accepted. Raises `failed` if YARN accepted none, and ApiUnavailable."""
        application = parse_application_id(failed.output)
        try:
            application = application or self._find_by_tag(driver)
        except ApiUnavailable as error:
            if "Submitting application application_" in failed.output:
                text = f"{failed}; it is unknown whether YARN accepted the application: {error}"
                raise ApiUnavailable(text) from failed
        if application is None:
            raise failed
        log.warning("YARN accepted %s, although %s", application, failed)
        return application

    def find(self, driver: ClusterDriver) -> str | None:
        with suppress(ApiUnavailable):
            return self._find_by_tag(driver)
        return None

    def _find_by_tag(self, driver: ClusterDriver) -> str | None:
        return find_application(yarn_tag(driver), addresses=self._addresses, user=self._user)

    def open(self, submission: str) -> Driver:
        return YarnDriver(submission, addresses=self._addresses, user=self._user)


class KubernetesSubmitter:
    """Creates pods through the Kubernetes API, without Spark. A pod's name follows from its launch."""

    def __init__(self, resources: Resources, environment: Mapping[str, str]) -> None:
        context = resources.spark.get("spark.kubernetes.context")
        self._access = find_access(resources.master, environment, context=context)
        self._namespace = resources.spark.get("spark.kubernetes.namespace", "default")

    def submit(self, driver: ClusterDriver) -> str:
        name = pod_name(driver)
        self.open(name).create(build_pod(driver, namespace=self._namespace))
        return name

    def find(self, driver: ClusterDriver) -> str | None:
        name = pod_name(driver)
        state = self.open(name).status().state
        return None if state in {DriverState.GONE, DriverState.UNKNOWN} else name

    def open(self, submission: str) -> DriverPod:
        return DriverPod(submission, namespace=self._namespace, access=self._access)


def run_spark_submit(
    driver: ClusterDriver, *, run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
) -> str:
    """Run spark-submit, and return its output. Raises SubmitFailed, SpecError, and ApiUnavailable at a timeout."""
    require_pyspark()
    import pyspark  # an extra

    home = Path(pyspark.__file__).parent
    with tempfile.TemporaryDirectory(prefix="frazil-submit-") as folder:
        file = Path(folder) / "spark.properties"
        file.touch(mode=0o600)
        file.write_text(format_properties(build_submit_properties(driver)))
        try:
            process = run(
                (str(home / "bin/spark-submit"), "--properties-file", str(file), driver.program, *driver.arguments),
                env={**os.environ, "SPARK_HOME": str(home)},  # else spark-submit uses the first Python on PATH
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=SUBMIT_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise ApiUnavailable(f"spark-submit did not end within {SUBMIT_TIMEOUT_S:.0f} s") from None
    output = f"{process.stdout}\n{process.stderr}"
    if process.returncode:
        problem = next((line for line in output.splitlines() if "Exception" in line or "Error" in line), output.strip())
        raise SubmitFailed(f"spark-submit ended with exit code {process.returncode}: {problem.strip()[-500:]}", output)
    return output
