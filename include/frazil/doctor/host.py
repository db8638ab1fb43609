"""Checks this machine: Python, Java, jars, folders, ports, and the Python of Spark tasks."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from frazil import SUPPORTED_PYTHONS, __version__
from frazil.doctor import CheckState, Finding
from frazil.extras import require_module
from frazil.home import cache_folder, home
from frazil.host.processes import is_listening, list_running_servers
from frazil.spark import jars
from frazil.spark.java import require_java, require_pyspark
from frazil.spec.units import format_rounded_bytes

MIN_FREE_BYTES = 2 << 30


def check_python() -> Iterator[Finding]:
    version = sys.version_info[:2]
    sentence = f"Python {version[0]}.{version[1]} at {sys.executable}, frazil {__version__}"
    if SUPPORTED_PYTHONS[0] <= version <= SUPPORTED_PYTHONS[1]:
        yield Finding("python", CheckState.OK, sentence)
    else:
        yield Finding("python", CheckState.WARNING, sentence, "use Python 3.11 to 3.13, the tested versions")


def check_java() -> Iterator[Finding]:
    if find_spec("py4j") is None:
        yield Finding("java", CheckState.SKIPPED, "without PySpark, this machine runs no writer and no Spark job")
        return
    yield Finding("java", CheckState.OK, f"Java 17 at {require_java()}")


def check_pyspark() -> Iterator[Finding]:
    if find_spec("py4j") is None:
        return
    require_pyspark()
    installed = version("pyspark")
    try:
        client = version("pyspark-client")
    except PackageNotFoundError:
        client = installed
    if client == installed:
        yield Finding("pyspark", CheckState.OK, f"PySpark {installed}")
    else:
        problem = f"pyspark is {installed} and pyspark-client {client}, in the same folder"
        fix = f"pip install pyspark=={installed} pyspark-client=={installed}"
        yield Finding("pyspark", CheckState.WRONG, problem, fix)


def check_jars() -> Iterator[Finding]:
    if find_spec("py4j") is None:
        yield Finding("jars", CheckState.SKIPPED, "PySpark is not installed: this machine needs no jar")
        return
    folder = jars.cache_folder()
    paths = {jar: folder / jar.coordinates.path for jar in jars.load_locked("spark")}
    missing = [jar for jar, path in paths.items() if not path.is_file() or path.stat().st_size != jar.bytes]
    if not missing:
        yield Finding("jars", CheckState.OK, f"Iceberg's runtime is in {folder}")
        return
    size = format_rounded_bytes(sum(jar.bytes for jar in missing))
    yield Finding(
        "jars", CheckState.WARNING,
        f"{len(missing)} of Spark's jars are not in {folder} yet ({size}); maintenance fetches them when it first runs",
        "python -m frazil.spark.jars fetch spark",
    )  # fmt: skip


def check_folders() -> Iterator[Finding]:
    yield _check_folder("home", home(), "FRAZIL_HOME", locked=True)
    yield _check_folder("cache", cache_folder(), "XDG_CACHE_HOME", locked=False)


def _check_folder(subject: str, folder: Path, variable: str, *, locked: bool) -> Finding:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    elsewhere = f"set {variable} to a folder on a local disk that this user may write to"
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            if locked:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        text = f"{existing} cannot be {'locked' if locked else 'written'}: {error}"
        return Finding(subject, CheckState.WRONG, text, elsewhere)
    free = shutil.disk_usage(existing).free
    if free < MIN_FREE_BYTES:
        text = f"{folder} has {format_rounded_bytes(free)} left"
        return Finding(subject, CheckState.WARNING, text, "free space on its disk")
    return Finding(subject, CheckState.OK, f"{folder} can be written; {format_rounded_bytes(free)} free")


def check_api_servers() -> Iterator[Finding]:
    running = list_running_servers()
    old = [str(server.process.pid) for server in running if server.is_outdated]
    if not running:
        text = f"no process on this host serves the page for FRAZIL_HOME {home()}"
        yield Finding("api server", CheckState.SKIPPED, text)
    elif not old:
        yield Finding("api server", CheckState.OK, "the API server runs the installed version of frazil")
    else:
        yield Finding(
            "api server", CheckState.WARNING, f"frazil has changed since the API server started (process "
            f"{', '.join(old)}): views of the operations page may fail", "restart Airflow's API server",
        )  # fmt: skip


def check_task_python() -> Iterator[Finding]:
    path = os.environ.get("PYSPARK_PYTHON")
    if not path or shutil.which(path) == sys.executable:
        yield Finding("tasks' python", CheckState.OK, "tasks on this machine run on the same Python")
        return
    fix = f"install frazil {__version__} there, or unset PYSPARK_PYTHON"
    try:
        script = "import sys, frazil, pyarrow; print(*sys.version_info[:2], frazil.__version__)"
        ran = subprocess.run([path, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        yield Finding("tasks' python", CheckState.WRONG, f"PYSPARK_PYTHON is {path}, which does not run: {error}", fix)
        return
    expected = f"{sys.version_info[0]} {sys.version_info[1]} {__version__}"
    if ran.returncode == 0 and ran.stdout.strip() == expected:
        yield Finding("tasks' python", CheckState.OK, f"{path} has the same Python and the same frazil")
        return
    reported = ran.stdout.strip() or (ran.stderr.strip().splitlines() or ["no output"])[-1]
    text = f"PYSPARK_PYTHON is {path}, which reports {reported!r}, not {expected!r}"
    yield Finding("tasks' python", CheckState.WRONG, text, fix)


def check_ports(ports: Mapping[str, int], ours: Mapping[str, int]) -> Iterator[Finding]:
    """Check that the ports of `frazil dev up` are free, except `ours`, on which its servers already listen."""
    busy = {name: port for name, port in ports.items() if name not in ours and is_listening(port)}
    if busy:
        names = ", ".join(f"{port} ({name})" for name, port in busy.items())
        yield Finding(
            "ports", CheckState.WARNING, f"another program listens on {names}, which `frazil dev up` needs",
            "stop it, or choose another port: see `frazil dev up --help`",
        )  # fmt: skip
        return
    running = "; ".join(f"{name} runs on {port}" for name, port in ours.items())
    free = "the other ports are free" if ours else "the ports of `frazil dev up` are free"
    yield Finding("ports", CheckState.OK, "; ".join(filter(None, (running, free))))


AIRFLOW_TIMEOUT_S = 90.0


def check_airflow(streams: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    if find_spec("airflow") is None:
        yield Finding("airflow", CheckState.SKIPPED, "Airflow is not installed in this Python")
        return
    require_module("airflow")
    if not _is_set_up(environment):
        yield Finding("airflow", CheckState.SKIPPED, "this user has no Airflow: AIRFLOW_HOME has no airflow.cfg")
        return
    # The environment of `frazil dev` has a home of its own, which the user's shell may not have.
    home = environment.get("AIRFLOW_HOME", "")
    airflow = f"AIRFLOW_HOME={shlex.quote(home)} airflow" if home != os.environ.get("AIRFLOW_HOME", "") else "airflow"
    command = [sys.executable, "-m", "frazil.airflow.doctor", str(streams.absolute()), airflow]
    ran = subprocess.run(
        command, env=dict(environment), capture_output=True, text=True, timeout=AIRFLOW_TIMEOUT_S - 5, check=False
    )
    if ran.returncode != 0:
        last = ran.stderr.strip().splitlines()[-1:] or [f"exit code {ran.returncode}"]
        yield Finding("airflow", CheckState.WRONG, f"cannot query Airflow: {last[0]}", f"{airflow} db check")
        return
    for finding in json.loads(ran.stdout.strip().splitlines()[-1]):
        yield Finding(finding["subject"], CheckState(finding["state"]), finding["message"], finding["fix"])


def _is_set_up(environment: Mapping[str, str]) -> bool:
    """Return whether Airflow is configured. If it is not, importing it would create a configuration file."""
    if any(value and name.startswith("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN") for name, value in environment.items()):
        return True
    return (Path(environment.get("AIRFLOW_HOME") or "~/airflow").expanduser() / "airflow.cfg").is_file()
