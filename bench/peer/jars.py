"""Downloads the peers' jars once, next to frazil's jars in its cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from frazil.spark import jars as own
from frazil.spark.jars import MavenCoordinates, download_jars

FLINK = "2.1.1"
AVRO_OF_FLINK = "2.1.0"
ICEBERG_OF_FLINK = "1.11.0"
ICEBERG = "1.12.0"
KAFKA = "4.3.1"
HADOOP = "3.4.2"
_HADOOP = (f"org.apache.hadoop:hadoop-client-api:{HADOOP}", f"org.apache.hadoop:hadoop-client-runtime:{HADOOP}")

_SETS: dict[str, tuple[tuple[str, ...], bool]] = {
    "spark": (
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.1",
            "org.apache.commons:commons-pool2:2.12.0",
        ),
        False,
    ),
    "flink": (
        (
            "org.apache.flink:flink-sql-connector-kafka:4.0.1-2.0",
            f"org.apache.iceberg:iceberg-flink-runtime-2.1:{ICEBERG_OF_FLINK}",
            f"org.apache.flink:flink-sql-gateway:{FLINK}",
            f"org.apache.flink:flink-sql-avro-confluent-registry:{AVRO_OF_FLINK}",
            *_HADOOP,
        ),
        False,
    ),
    "connect": (
        (
            f"org.apache.kafka:connect-runtime:{KAFKA}",
            f"org.apache.kafka:connect-json:{KAFKA}",
            f"org.apache.iceberg:iceberg-kafka-connect:{ICEBERG}",
            f"org.apache.iceberg:iceberg-parquet:{ICEBERG}",
            f"org.apache.iceberg:iceberg-data:{ICEBERG}",
            *_HADOOP,
            "org.slf4j:slf4j-simple:2.0.17",
        ),
        True,
    ),
}


def of_peer(name: str) -> list[Path]:
    """Return the jars that a peer needs in addition to its engine."""
    coordinates, transitive = _SETS[name]
    folder, said = _folder(name), "\n".join(coordinates)
    complete = folder / "complete"
    if not complete.exists() or complete.read_text() != said:
        shutil.rmtree(folder, ignore_errors=True)
        wanted = [MavenCoordinates.parse(text) for text in coordinates]
        download_jars(wanted, to=folder, cache=_folder("ivy"), transitive=transitive)
        complete.write_text(said)
    return sorted(folder.rglob("*.jar"))


def of_flink() -> list[Path]:
    """Return Flink's own jars, from the Python package that contains them (300 MB)."""
    folder = _folder("flink-libraries")
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        package = f"apache-flink-libraries=={FLINK}"
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation",
                        "--no-binary", ":all:", "-d", folder, package], check=True)  # fmt: skip
        archive = next(folder.glob("*.tar.gz"))
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        archive.unlink()
        (folder / "complete").touch()
    root = next(folder.glob("apache_flink_libraries-*"))
    return [*sorted((root / "deps" / "lib").glob("*.jar")), *sorted((root / "deps" / "opt").glob("*.jar"))]


def sqlite() -> Path:
    """Return the JDBC driver of the catalog that all systems use."""
    return next(path for path in own.ensure_jars("spark") if path.name.startswith("sqlite-jdbc"))


def _folder(name: str) -> Path:
    return own.cache_folder().parent / "peers" / name
