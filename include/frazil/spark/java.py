"""Finds Java 17, the only requirement that pip cannot install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.errors import EnvironmentUnusable, FrazilError
from frazil.extras import require_module

if TYPE_CHECKING:
    from pyspark import SparkConf

REQUIRED_MAJOR = 17
LEAN_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that only schedules tasks. Optimising its code would take more CPU than it saves."""

_HOW_TO_INSTALL = (
    f"Install a JDK {REQUIRED_MAJOR} (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install "
    f"java-17-openjdk-headless; macOS: brew install openjdk@17) and put it on PATH, or set JAVA_HOME to it."
)


def require_java(environment: Mapping[str, str] | None = None) -> Path:
    """Return the path of Java 17, from JAVA_HOME or else from PATH. Raises EnvironmentUnusable."""
    env = os.environ if environment is None else environment
    java, found_by = find_java(env)
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnusable(f"{java} ({found_by}) cannot be started: {error}. {_HOW_TO_INSTALL}") from error
    major = parse_major_version(output)
    if major != REQUIRED_MAJOR:
        version = f"is Java {major}" if major else "does not report its version"
        text = f"{java} ({found_by}) {version}; frazil needs Java {REQUIRED_MAJOR}. {_HOW_TO_INSTALL}"
        raise EnvironmentUnusable(text)
    return java


def log_file_options(log_file: Path) -> str:
    """Return the JVM options with which Spark logs to a file instead of standard error."""
    configuration = Path(__file__).with_name("log4j2.xml")
    return f'"-Dlog4j2.configurationFile={configuration.as_uri()}" "-Dfrazil.log={log_file}"'


def find_root_cause(trace: str) -> str | None:
    """Return the first line of the root cause in a Java stack trace; None if the trace has only one error."""
    causes = re.findall(r"^Caused by: (.+)$", trace, re.MULTILINE)
    return causes[-1] if causes else None


def runs_in_jvm() -> bool:
    """Return whether a JVM started this Python process, as for a driver in a cluster."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def jvm_start() -> Iterator[None]:
    """Let PySpark start a JVM quickly within the block. Raises EnvironmentUnusable or MissingExtra if it cannot start.
    Java's version is checked only after a failure.
    """
    require_pyspark()
    if runs_in_jvm():
        yield
        return
    find_java(os.environ)
    _speed_up_launcher()
    try:
        yield
    except FrazilError:
        raise
    except Exception:
        require_java()
        raise


def launch_jvm(conf: SparkConf, output: Path) -> None:
    """Start the JVM of the next context, unless this process has one. Appends its output to `output`.

    No configuration redirects all of a JVM's output.
    """
    from pyspark import SparkContext  # most users of this module start no JVM
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # Spark would keep it, and the new JVM would never end
        return
    with output.open("ab") as file:
        gateway = launch_gateway(conf, {"stdout": file, "stderr": file})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)


def _speed_up_launcher() -> None:
    """Let the JVM that composes Spark's command line read one jar. Otherwise it opens nearly all jars of Spark."""
    from pyspark.find_spark_home import _find_spark_home  # most users of this module start no JVM

    spark: str = os.environ.get("SPARK_HOME") or _find_spark_home()  # type: ignore[no-untyped-call]
    os.environ["SPARK_HOME"] = spark
    launcher = next(Path(spark).glob("jars/spark-launcher_*.jar"), None)
    if launcher and len(str(launcher).split()) == 1:  # a shell splits the options at spaces
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", f"-Xbootclasspath/a:{launcher} {LEAN_OPTIONS}")


def require_pyspark() -> None:
    """Raise MissingExtra if Py4J is missing. `import pyspark` would succeed with pyspark-client, too."""
    require_module("py4j")


def parse_major_version(output: str) -> int | None:
    """Return the major version in the output of `java -version`: 8 for `"1.8.0_402"`, None if it has none."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None


def find_java_version(java: Path) -> str | None:
    """Return a version like 17.0.15, from the JDK's file `release` or by running `java`; None if unknown."""
    with suppress(OSError):
        if match := re.search(
            r'^JAVA_VERSION="(.+)"$', (java.resolve().parents[1] / "release").read_text(), re.MULTILINE
        ):
            return match[1]
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([^"]+)"', output)
    return version[1] if version else None


def find_java(env: Mapping[str, str]) -> tuple[Path, str]:
    """Return the path of `java`, and "JAVA_HOME" or "PATH". Does not run it. Raises EnvironmentUnusable."""
    if java_home := env.get("JAVA_HOME"):
        java = Path(java_home) / "bin" / "java"
        if not java.is_file():
            raise EnvironmentUnusable(f"JAVA_HOME is {java_home}, but {java} does not exist. {_HOW_TO_INSTALL}")
        return java, "JAVA_HOME"
    executable = shutil.which("java", path=env.get("PATH", os.defpath))
    if not executable:
        text = f"Java {REQUIRED_MAJOR} is missing: JAVA_HOME is not set, and PATH has no java. {_HOW_TO_INSTALL}"
        raise EnvironmentUnusable(text)
    return Path(executable), "PATH"
