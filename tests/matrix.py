"""`python -m tests.matrix [ENVIRONMENT…] [--only stream]`: what `make matrix` runs.

Each environment is a venv that uv creates, with the versions of one entry of ENVIRONMENTS. All other versions are those
of requirements.txt. Each environment runs the unit tests and a whole stream with a real Kafka, Spark and Airflow. The
stream test kills and restarts a writer, compacts with Spark, and aggregates a complete day.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frazil.spark import jars

CHECKOUT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
UNIT = ("-n", "2", "--dist", "loadgroup", "-m", "not soak and not processes", "tests/unit")
STREAM = (
    "-n",
    "0",
    "tests/e2e/test_walks.py::test_the_quick_start_can_be_followed_until_airflow_starts",
    "tests/e2e/test_maintenance_flow.py",
    "tests/e2e/test_partition_flow.py",
)
PARTS = {"unit": UNIT, "stream": STREAM}
MAX_SHOWN_CHARACTERS = 20_000
"""Length of the shown end of a failed part's log, which is deleted with its environment."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The versions of one environment."""

    python: str
    spark: str
    iceberg: str
    airflow: str
    kafka: str
    unpinned: tuple[str, ...] = ()
    """Packages whose version in requirements.txt this Airflow refuses."""

    @property
    def packages(self) -> dict[str, str]:
        """The versions of packages that differ from requirements.txt."""
        return {
            **dict.fromkeys(("apache-airflow", "apache-airflow-core"), self.airflow),
            **dict.fromkeys(("pyspark", "pyspark-client"), self.spark),
        }

    def roots(self) -> dict[str, jars.RootModules]:
        """Return the sets of jars, with these versions of Iceberg's runtime and Kafka's broker."""
        minor = ".".join(self.spark.split(".")[:2])
        patterns = {
            r"(.*:iceberg-spark-runtime-)[\d.]+(_2\.13):.*": rf"\g<1>{minor}\g<2>:{self.iceberg}",
            r"(.*:iceberg-aws-bundle):.*": rf"\g<1>:{self.iceberg}",
            r"(.*:kafka_2\.13):.*": rf"\g<1>:{self.kafka}",
        }
        made = {}
        for name, roots in jars.JAR_SETS.items():
            coordinates = roots.coordinates
            for pattern, version in patterns.items():
                coordinates = tuple(re.sub(pattern, version, text) for text in coordinates)
            made[name] = replace(roots, coordinates=coordinates)
        return {name: roots for name, roots in made.items() if "-" not in name}


ENVIRONMENTS = {
    "a": Environment(python="3.12", spark="4.0.4", iceberg="1.10.1", airflow="3.3.1", kafka="3.7.2"),
    "b": Environment(python="3.13", spark="4.1.1", iceberg="1.11.0", airflow="3.3.2", kafka="4.0.1"),
    "c": Environment(
        python="3.13", spark="4.0.1", iceberg="1.11.0", airflow="3.3.0", kafka="4.1.1", unpinned=("aiosqlite",)
    ),
    "d": Environment(python="3.12", spark="4.1.3", iceberg="1.12.0", airflow="3.3.2", kafka="4.3.1"),
}


@dataclass(frozen=True, slots=True)
class Result:
    part: str
    seconds: float
    passed: bool
    summary: str


def make(environment: Environment, folder: Path) -> dict[str, str]:
    """Create the venv and the jars' lock file, unless the folder has them. Return the variables for its tests."""
    venv, lock_file, requirements = folder / "venv", folder / "jars.lock", folder / "requirements.txt"
    python = venv / "bin" / "python"
    if not requirements.exists():
        folder.mkdir(parents=True, exist_ok=True)
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{line}\n" for line in _constraints(environment)))
        _uv("venv", "--clear", "--python", _interpreter(environment.python), str(venv))
        compiled = folder / "compiled.txt"
        _uv(
            *("pip", "compile", "--python-version", environment.python, "--all-extras", "--group", "checkout"),
            *("--constraint", str(constraints), "--output-file", str(compiled), "pyproject.toml"),
        )
        _uv("pip", "install", "--python", str(python), "--no-deps", "--requirements", str(compiled))
        _uv("pip", "install", "--python", str(python), "--no-deps", "--editable", str(CHECKOUT))
        # Airflow would find the plugin twice.
        shutil.rmtree(CHECKOUT / "include" / "frazil.egg-info", ignore_errors=True)
        compiled.rename(requirements)
    kept = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONHOME"}}
    variables = {
        **kept,
        "PATH": f"{python.parent}{os.pathsep}{kept['PATH']}",
        "PYTHONPATH": f"{CHECKOUT / 'include'}{os.pathsep}{CHECKOUT}",
        "FRAZIL_JARS_LOCK": str(lock_file),
        "FRAZIL_JARS": str(folder / "jars"),
    }
    if not lock_file.exists():
        temporary = folder / "jars.lock.new"
        jars.write_lock_file(temporary, environment.roots())
        temporary.rename(lock_file)
    # Otherwise tests would do this work within their timeouts.
    for module in (["frazil.spark.jars", "fetch"], ["frazil.ingest.precompile"]):
        subprocess.run([python, "-m", *module], env=variables, cwd=CHECKOUT, stdout=subprocess.DEVNULL, check=True)
    return variables


def _constraints(environment: Environment) -> Iterator[str]:
    versions = {**environment.packages, **dict.fromkeys(environment.unpinned, "")}
    for line in (CHECKOUT / "requirements.txt").read_text().splitlines():
        name, pinned, _ = line.partition("==")
        if pinned and name not in versions and not name.startswith("apache-airflow-task-sdk"):
            yield line
    yield from (f"{name}=={version}" for name, version in versions.items() if version)


def _interpreter(version: str) -> str:
    """Return the newest Python of this version that pyenv has. Otherwise return the version: uv then searches PATH."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    found = sorted(pyenv.glob(f"versions/{version}.*/bin/python"), key=lambda path: path.stat().st_mtime)
    return str(found[-1]) if found else version


def _uv(*arguments: str) -> None:
    subprocess.run([UV, *arguments, "--quiet"], cwd=CHECKOUT, check=True)


def run(part: str, variables: dict[str, str], folder: Path) -> Result:
    """Run one part's tests. Their output goes to a file in the folder."""
    began = time.monotonic()
    with (folder / f"{part}.log").open("w") as log:
        python = str(folder / "venv" / "bin" / "python")
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *PARTS[part]], env=variables, cwd=CHECKOUT, stdout=log, stderr=log, check=False
        )
    last = Path(log.name).read_text().strip().splitlines()[-1:]
    return Result(part, time.monotonic() - began, done.returncode == 0, last[0] if last else "no output")


def table(results: Sequence[tuple[Environment, Result]]) -> str:
    """Return the results as a table for bench/README.md."""
    lines = ["| Python | Spark | Iceberg's runtime | Airflow | Kafka | part | seconds | result |", "|---" * 8 + "|"]
    for row, result in results:
        versions = (row.python, row.spark, row.iceberg, row.airflow, row.kafka)
        answer = "passed" if result.passed else result.summary
        lines.append(f"| {' | '.join(versions)} | {result.part} | {result.seconds:.0f} | {answer} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make matrix", description="Tests with other versions.")
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT", help="by default all")
    parser.add_argument("--only", choices=PARTS, help="run this part alone")
    parser.add_argument("--folder", type=Path, help="keep the environments in this folder, and use those that it has")
    arguments = parser.parse_args()
    results: list[tuple[Environment, Result]] = []
    with tempfile.TemporaryDirectory(prefix="frazil-matrix-") as temporary:
        for name in arguments.environments or ENVIRONMENTS:
            environment, folder = ENVIRONMENTS[name], (arguments.folder or Path(temporary)).absolute() / name
            print(f"{name}: {environment}", flush=True)
            variables = make(environment, folder)
            for part in [arguments.only] if arguments.only else PARTS:
                result = run(part, variables, folder)
                print(f"{name}: {part}: {result.seconds:.0f} s: {result.summary}", flush=True)
                if not result.passed:
                    print((folder / f"{part}.log").read_text()[-MAX_SHOWN_CHARACTERS:], flush=True)
                results.append((environment, result))
    print(table(results))
    return 0 if all(result.passed for _, result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
