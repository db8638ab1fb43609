"""The submission and the status of a driver in a cluster, and the interface that each kind of cluster implements. Also
has HTTP calls to a cluster's API, with timeouts and short error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from frazil.errors import innermost_error_text
from frazil.spec.resources import Resources

if TYPE_CHECKING:
    import requests

T = TypeVar("T")


class DriverState(StrEnum):
    UNKNOWN = "unknown"
    """The cluster gave no usable response. The driver may still run."""
    WAITING = "waiting for the cluster"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"
    GONE = "gone"
    """The cluster has no record of the driver, which does not run. Its exit code is lost."""

    @property
    def has_ended(self) -> bool:
        return self in {DriverState.SUCCEEDED, DriverState.FAILED, DriverState.KILLED, DriverState.GONE}


@dataclass(frozen=True, slots=True)
class DriverStatus:
    state: DriverState
    reason: str
    exit_code: int | None = None
    """The exit code of the driver's Python, if it has ended and the cluster reports it."""
    cause: str | None = None
    """Why the cluster ends or ended the driver, such as an eviction; None if the driver ended by itself."""


class Driver(Protocol):
    """One driver in a cluster. Keeps no connection between calls, which take at most about 10 s."""

    def status(self) -> DriverStatus:
        """Return the driver's current status; UNKNOWN if the cluster does not respond."""

    def kill(self) -> None:
        """Kill the driver, and thereby its current batch. Raises AccessDenied and EnvironmentUnusable."""

    def log(self, *, limit_bytes: int) -> str | None:
        """Return the last part of the driver's standard error and output; None if the cluster does not have its log."""


TIMEOUT_S = (2.0, 5.0)
"""Timeouts for connecting, and for each pause while a response arrives."""


class ApiUnavailable(Exception):
    """The API gave no usable response, so the driver's state is unknown. The message says why."""


class ApiUnreachable(ApiUnavailable):
    """No connection was established, so the API has not received the request."""


def send_request(session: requests.Session, method: str, url: str, *, api: str, **options: Any) -> requests.Response:
    """Send a request and return the response, even if its status is a client error (4xx). `api` is the API's name in
    messages. Raises ApiUnreachable without a connection, and ApiUnavailable after a timeout, a redirect loop, a server
    error (5xx) or 429.
    """
    import requests  # a writer needs only this module's constants
    from urllib3.exceptions import NewConnectionError

    try:
        response = session.request(method, url, timeout=TIMEOUT_S, **options)
    except requests.exceptions.SSLError as error:
        raise ApiUnreachable(f"the certificate of {api} is not trusted: {innermost_error_text(error)}") from error
    except requests.ConnectTimeout as error:
        raise ApiUnreachable(f"{api} cannot be reached: no connection within {TIMEOUT_S[0]:.0f} s") from error
    except requests.Timeout as error:
        raise ApiUnavailable(f"{api} did not respond in time") from error
    except (requests.RequestException, OSError) as error:
        wrapped = error.args[0] if error.args else None
        # The connection was refused, or the host name is unknown.
        not_connected = isinstance(getattr(wrapped, "reason", wrapped), NewConnectionError)
        kind = ApiUnreachable if not_connected else ApiUnavailable
        raise kind(f"{api} cannot be reached: {innermost_error_text(error)}") from error
    if response.status_code >= 500 or response.status_code == 429:
        raise ApiUnavailable(f"{api} answered {response.status_code} {response.reason}")
    return response


def ask_any(addresses: Sequence[str], ask: Callable[[str], T], *, api: str) -> T:
    """Return the first answer of several servers of an API. Raises the last ApiUnavailable if none answers."""
    problem = ApiUnavailable(f"no web address of {api} is configured")
    for address in addresses:
        try:
            return ask(address)
        except ApiUnavailable as error:
            problem = error
    raise problem


def parse_json_object(response: requests.Response, *, api: str) -> dict[str, Any]:
    """Return the JSON object in a response. Raises ApiUnavailable for any other body, such as a proxy's login page."""
    try:
        value = response.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        kind = response.headers.get("Content-Type", "nothing").partition(";")[0]
        text = f"{api} answered {response.status_code} with {kind} instead of JSON: is a proxy in front of it?"
        raise ApiUnavailable(text)
    return value


HADOOP_FOLDER_VARIABLES = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables for the path of the Hadoop cluster's configuration. Either must be set for YARN."""
PACKAGE_FOLDER = "frazil-package"
"""The folder, in each process's working directory, into which Spark unpacks the archive of `frazil package`."""
PACKAGE_PYTHON = f"./{PACKAGE_FOLDER}/bin/python"
PYTHON_OVERHEAD_MIB = 1024
"""Memory of the driver's container for Python, in addition to the JVM's heap."""


@dataclass(frozen=True, slots=True)
class ClusterDriver:
    application: str
    launch_id: str
    """The id of the launch, 32 hexadecimal digits. Kubernetes and YARN recognise a repeated launch by it."""
    program: str
    """A Python file of `frazil.spark_apps` on this host. On Kubernetes, the image has the same module."""
    arguments: tuple[str, ...]
    resources: Resources
    environment: Mapping[str, str]
    """The driver's environment variables. On YARN, they may contain secrets, and are passed in the properties file."""

    @property
    def common_properties(self) -> dict[str, str]:
        """The Spark properties of a driver in any cluster that Spark starts."""
        package = self.resources.package
        return {
            "spark.app.name": f"frazil {self.application}",
            "spark.driver.memory": f"{max(1, self.resources.driver_memory // 2**20)}m",
            **({"spark.archives": f"{package}#{PACKAGE_FOLDER}"} if package else {}),
        }


def build_submit_properties(driver: ClusterDriver) -> dict[str, str]:
    """Return spark-submit's properties for YARN. `resources.spark` overrides all but the driver's identity."""
    python = {"PYSPARK_PYTHON": PACKAGE_PYTHON} if driver.resources.package else {}
    environment = {**driver.environment, **python}
    return {
        **driver.common_properties,
        "spark.driver.memoryOverhead": f"{PYTHON_OVERHEAD_MIB}m",
        **{f"spark.yarn.appMasterEnv.{name}": value for name, value in environment.items()},
        **driver.resources.spark,
        "spark.master": driver.resources.master,
        "spark.submit.deployMode": "cluster",
        "spark.yarn.submit.waitAppCompletion": "false",
        # The supervisor decides whether a writer is restarted.
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.tags": yarn_tag(driver),
    }


def format_properties(properties: Mapping[str, str]) -> str:
    return "".join(f"{_escape(key, in_key=True)}={_escape(value)}\n" for key, value in properties.items())


def yarn_tag(driver: ClusterDriver) -> str:
    """Return the tag that identifies a launch if spark-submit ended before it printed the application's id."""
    return f"frazil-{driver.launch_id}"


def _escape(text: str, *, in_key: bool = False) -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    if in_key:
        special |= {each: f"\\{each}" for each in " :=#!"}
    escaped = "".join(special.get(each, each) for each in text)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped
