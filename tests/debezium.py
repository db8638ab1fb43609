"""Debezium's connectors for PostgreSQL and MariaDB, in a standalone Kafka Connect process."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from frazil.dev import process
from frazil.spark import jars
from frazil.spark.jars import MavenCoordinates, download_jars
from frazil.spark.java import require_java

POSTGRES = "io.debezium:debezium-connector-postgres:3.6.3.Final:tar.gz:plugin"
MARIADB = "io.debezium:debezium-connector-mariadb:3.5.0.Final:tar.gz:plugin"
RUNTIME = (
    "org.apache.kafka:connect-runtime:4.3.1",
    "org.apache.kafka:connect-json:4.3.1",
    "org.slf4j:slf4j-simple:2.0.17",
)


class Debezium(process.EmbeddedServer):
    """Captures one database into topics `<prefix>.<schema>.<table>`. After a restart, it continues where it stopped."""

    TITLE, RECORD, READY_TIMEOUT_S = "Debezium", "debezium", 120

    def __init__(self, folder: Path, *, bootstrap: str, settings: dict[str, str], connector: str = POSTGRES) -> None:
        self.folder, self._bootstrap, self._settings, self._connector = folder, bootstrap, settings, connector
        self.log = folder / "debezium.log"

    @property
    def address(self) -> str:
        return self._bootstrap

    def _port_conflict(self) -> str:
        return ""

    def _launch(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        converter = "org.apache.kafka.connect.json.JsonConverter"
        worker = {
            "bootstrap.servers": self._bootstrap,
            "key.converter": converter,
            "value.converter": converter,
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "false",
            "offset.storage.file.filename": self.folder / "offsets",
            "offset.flush.interval.ms": "1000",
            "listeners": "http://127.0.0.1:0",
            "plugin.path": plugin(self._connector),
            "plugin.discovery": "only_scan",
        }
        connector = {
            "name": "source",
            "tasks.max": "1",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
            "provide.transaction.metadata": "true",
            "decimal.handling.mode": "string",
            "poll.interval.ms": "50",
            **self._settings,
        }
        files = []
        for name, properties in (("worker", worker), ("connector", connector)):
            files.append(self.folder / f"{name}.properties")
            files[-1].write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        paths = os.pathsep.join(str(path) for path in sorted(runtime().rglob("*.jar")))
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = [require_java(), "-Xmx512m", "-cp", paths, main, *files]
        process.start(self.RECORD, command, records=self.folder, log=self.log)

    def _not_ready_reason(self) -> str | None:
        said = self.log.read_text() if self.log.is_file() else ""
        return None if "Starting streaming" in said else "it does not stream yet"


def runtime() -> Path:
    """Return the folder with the jars of Kafka Connect."""
    return fetched("runtime", RUNTIME, transitive=True)


def plugin(connector: str) -> Path:
    """Return the folder with a connector's jars."""
    folder = "plugin" if connector == POSTGRES else connector.split(":")[1]
    archive = next(fetched(folder, (connector,), transitive=False).rglob("*.tar.gz"))
    unpacked = archive.parent / "unpacked"
    if not unpacked.is_dir():
        with tarfile.open(archive) as packed:
            packed.extractall(unpacked.with_suffix(".new"), filter="data")
        unpacked.with_suffix(".new").rename(unpacked)
    return unpacked


def fetched(name: str, coordinates: tuple[str, ...], *, transitive: bool) -> Path:
    """Return a folder with these artifacts. Downloads them once."""
    cache = jars.cache_folder().parent / "debezium"
    folder = cache / name
    if not (folder / "complete").exists():
        wanted = [MavenCoordinates.parse(text) for text in coordinates]
        download_jars(wanted, to=folder, cache=cache / "ivy", transitive=transitive)
        (folder / "complete").touch()
    return folder
