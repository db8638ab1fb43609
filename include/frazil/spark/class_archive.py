"""Creates archives of a JVM's classes (class data sharing). Spark's archive halves the start time of a writer's JVM.

`make setup` runs this module. Without a matching archive, the JVM loads the classes from the jars.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from frazil.home import cache_folder
from frazil.spark.java import LEAN_OPTIONS, find_java, find_java_version

QUIET_OPTIONS = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")


def archive_path() -> Path:
    """Return the path of Spark's archive, which names the versions of Spark and Java. Raises EnvironmentUnusable."""
    import pyspark  # other archives need no Spark

    java, _ = find_java(os.environ)
    version = find_java_version(java) or "unknown"
    installation = re.sub(r"\W+", "-", str(Path(pyspark.__file__).parent))[-60:]
    program = hashlib.sha256(_ARCHIVE_PROGRAM.encode()).hexdigest()[:8]
    return cache_folder() / f"spark-{pyspark.__version__}-java-{version}{installation}-{program}.jsa"


def lean_java_options() -> str:
    return " ".join([LEAN_OPTIONS, *archive_options(archive_path())])


def archive_options(path: Path) -> list[str]:
    """Return the options with which a JVM loads classes from an archive; none if it does not exist."""
    return [f"-XX:SharedArchiveFile={path}", *QUIET_OPTIONS] if path.exists() else []


_ARCHIVE_PROGRAM = """
import sys
from pyspark.sql import SparkSession
session = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
)
session.sparkContext.parallelize(["plan"], 1).mapPartitions(lambda plans: plans).collect()
session.range(1).selectExpr("string(id) as plan").mapInArrow(lambda it: it, "plan string").collect()
gateway = session.sparkContext._gateway
session.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait(120)  # it dumps the archive as it ends
"""


def create_archive(path: Path, run: Callable[[list[str]], None]) -> Path:
    """Create an archive atomically if it is missing, and delete earlier ones, whose names differ after the last dash.

    `run` starts a JVM with the given options, lets it load its classes, and ends it. Raises RuntimeError.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    run([f"-XX:ArchiveClassesAtExit={temporary}", *QUIET_OPTIONS])
    if not temporary.exists():
        raise RuntimeError(f"the JVM wrote no {path}")
    temporary.replace(path)
    for old in path.parent.glob(f"{path.stem.rpartition('-')[0]}*.jsa"):  # of earlier versions, 150 MB each
        if old != path:
            old.unlink(missing_ok=True)
    return path


def _run_spark(options: list[str]) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", _ARCHIVE_PROGRAM, " ".join([LEAN_OPTIONS, *options])]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(process.stderr[-2000:])


if __name__ == "__main__":
    try:
        print(f"JVM class archive: {create_archive(archive_path(), _run_spark)}")
    except (OSError, RuntimeError) as error:
        print(f"cannot create the JVM class archive, so writers will start more slowly: {error}", file=sys.stderr)
