"""An archive of Spark's classes, from which the writer's JVM starts: a restart, and so a recovery, takes half the time.

`python -m frazil.spark.class_archive` makes the archive once (`make setup` does): it runs a small session and lets
the JVM dump the classes it loaded. It is only an optimisation: without it, or with one that no longer fits,
the JVM loads the classes from the jars.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark

from frazil.home import cache_folder
from frazil.spark.java import find_java

LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM only schedules and moves no records: optimising hot code would cost more CPU than it saves."""
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


def archive_path() -> Path:
    """The path for this Spark and this Java; the file may not exist. An archive fits no other JVM or class path.

    Raises EnvironmentUnusable if there is no Java.
    """
    java, _ = find_java(os.environ)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([^"]+)"', said)
    place = re.sub(r"\W+", "-", str(Path(pyspark.__file__).parent))[-60:]
    program = hashlib.sha256(_PROGRAM.encode()).hexdigest()[:8]
    return (
        cache_folder() / f"spark-{pyspark.__version__}-java-{version[1] if version else 'unknown'}{place}-{program}.jsa"
    )


def java_options() -> str:
    """Options of a lean JVM that starts from the archive if there is one."""
    path = archive_path()
    return f"{LEAN} -XX:SharedArchiveFile={path} {QUIET}" if path.exists() else LEAN


_PROGRAM = """
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


def make() -> Path:
    """Make the archive if it is missing; whole or not at all, even if two processes make it at once."""
    path = archive_path()
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    options = f"{LEAN} -XX:ArchiveClassesAtExit={temporary} {QUIET}"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, options], env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode or not temporary.exists():
        raise RuntimeError(ran.stderr[-2000:])
    temporary.replace(path)
    for old in path.parent.glob(f"{path.stem.rpartition('-')[0]}*.jsa"):  # of earlier versions, 150 MB each
        if old != path:
            old.unlink(missing_ok=True)
    return path


if __name__ == "__main__":
    try:
        print(f"JVM class archive: {make()}")
    except (OSError, RuntimeError) as error:
        print(f"the JVM class archive was not made, writers will start slower: {error}", file=sys.stderr)
