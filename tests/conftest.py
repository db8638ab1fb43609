"""Fixtures and hooks of all tests: a real broker, new topics, a FRAZIL_HOME per test, the right Python and Java."""

from __future__ import annotations

import fcntl
import gc
import itertools
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from hypothesis import settings
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from frazil.dev import kafka as dev_kafka
from frazil.dev import process
from frazil.dev.kafka import EmbeddedKafka, EmbeddedRegistry
from frazil.dev.object_store import EmbeddedObjectStore
from frazil.dev.postgres import EmbeddedPostgres
from frazil.dev.spark_cluster import EmbeddedSparkCluster
from frazil.errors import FrazilError
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat
from frazil.spark import jars
from frazil.spec.load import load_stream
from frazil.spec.model import StreamSpec
from frazil.table.catalogs import load_catalog, spark_properties
from tests import chromium, durations, polling
from tests.dags import in_airflow
from tests.dags.in_airflow import AirflowProcess
from tests.no_sync import write_without_sync

# Spark starts its workers with PYSPARK_PYTHON, and binds to whatever the host's name resolves to, unless told.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
# The commands of this venv (spark-submit, airflow) come before any of the system's.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
# Tests may move HOME; the jars and the class archive are fetched and made once.
os.environ.setdefault("XDG_CACHE_HOME", str(Path("~/.cache").expanduser()))

write_without_sync()

# Brokers of tests start often and move few records: a start without the optimising compiler takes half the CPU.
dev_kafka.JVM_OPTIONS[:] = ["-Xms64m", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]

# Workers look for free ports apart: a server listens a while after its port was found free.
process.PORTS = process.PORTS[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8 :: 8]

# An example's time says how busy the machine is, not whether the law holds. `make unit` and `make test` try the same
# few examples each time, and `make soak` many others.
settings.register_profile("unit", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("test", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("soak", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("FRAZIL_TEST_EXAMPLES", "test"))

TEST_SEED = "FRAZIL_TEST_SEED"
"""The variable with the number that chooses this run's acceptance cells, rotating tests and random faults."""
if TEST_SEED not in os.environ:
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    soaks = os.environ.get("FRAZIL_TEST_EXAMPLES") == "soak"
    os.environ[TEST_SEED] = (not soaks and counted.stdout.strip()) or str(random.randrange(2**32))

SPARK_JARS = ("spark", "s3", "postgres")
"""One JVM serves the tests of all catalogs and storages."""

TopicFactory = Callable[..., str]


def pytest_report_header() -> list[str]:
    number = os.environ[TEST_SEED]
    header = [f"{TEST_SEED}={number} chooses the same acceptance cells, rotating tests and random faults again"]
    if chromium.installed() is None and not chromium.may_install():
        header.append("no Chromium: the browser tests are skipped. Debian: apt-get install chromium")
    return header


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assign tests to the workers of `make test`, and sort them so that the longest come first.

    One worker waits for Airflow while another computes with Spark, for acceptance tests too. Each remaining file is a
    group of its own. The last groups are the shortest, so all workers end at about the same time.
    """
    seconds = durations.read()
    for item in items:
        if not is_in_turn(item):
            item.add_marker(pytest.mark.soak)
        if durations.function_of(item.nodeid) in seconds:
            item.add_marker(pytest.mark.slow)
    order = {"airflow": 0, "spark": 1}
    groups = {item: group_of(item) for item in items}
    longest: Counter[str] = Counter()
    for group, function in dict.fromkeys((group, durations.function_of(item.nodeid)) for item, group in groups.items()):
        longest[group] += seconds.get(function, 0)  # type: ignore[assignment]
    for item, group in groups.items():
        if item.config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: (order.get(groups[item], len(order)), -longest[groups[item]]))


def is_in_turn(item: pytest.Item) -> bool:
    """Return whether to run a test now. One marked `rotates(n)` runs at every n-th commit, or if its file is named.

    The numbers of two marks, the test's and its parameter's, multiply. The longest tests have a `turn`, the remainder
    of their commits' numbers: chosen so that all commits take about the same time.
    """
    marks = [*item.iter_markers("rotates")]
    every = math.prod(mark.args[0] for mark in marks)
    turn = next((mark.kwargs["turn"] for mark in marks if mark.kwargs), -crc32(item.nodeid.encode()))
    named = {Path(name.partition("::")[0]).resolve() for name in item.config.args}
    return (int(os.environ[TEST_SEED]) - turn) % every == 0 or item.path in named


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude everything imported and collected so far from garbage collection, because it stays until the end."""
    if getattr(session.config.option, "loadgroup", False):
        alone = [item.nodeid for item in session.items if "@" not in item.nodeid]
        assert not alone, f"xdist does not group tests: is its version made for this pytest? {alone[:3]}"
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest removes the folders
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the shared broker, and servers that a worker left when it died. Each has a record in its test's folder."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if hasattr(session.config, "workerinput") or factory is None:
        return
    # Another run may remove folders meanwhile, which `os.walk` passes by.
    for folder, _, names in os.walk(factory.getbasetemp()):
        if any(name.endswith(process.RECORD_SUFFIX) for name in names):
            process.stop_all(process.read_records(Path(folder)), records=Path(folder))


def group_of(item: pytest.Item) -> str:
    file = durations.file_of(item.nodeid)
    folder = file.rpartition("/")[0]
    if folder == "tests/acceptance":
        return "spark"  # some of its cells need a JVM
    if folder in {"tests/browser", "tests/dags"}:
        return "tests/dags"  # an Airflow without a scheduler, which is imported once
    fixtures = getattr(item, "fixturenames", ())
    return next((name for name in ("airflow", "spark") if name in fixtures), file)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedKafka:
    """One broker for all workers of the run, which the first test that asks for it starts. No test may stop it."""
    folder = _shared_folder(tmp_path_factory) / "kafka"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return EmbeddedKafka(folder).start()


def _shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all workers of the run have."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRegistry]:
    """One schema registry for the whole run, started by the first test that asks for it."""
    with EmbeddedRegistry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedObjectStore]:
    """One SeaweedFS for the whole run: S3, and an Iceberg REST catalog."""
    with EmbeddedObjectStore(tmp_path_factory.mktemp("object-store")) as store:
        yield store


@pytest.fixture(scope="session")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty Airflow database, to be copied."""
    home = tmp_path_factory.mktemp("airflow-database")
    process = AirflowProcess(home)
    process.call(in_airflow.make_database)
    process.end()
    return home / "airflow.db"


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedSparkCluster]:
    """One standalone cluster with two workers for the whole run. A test that kills a worker starts it again."""
    with EmbeddedSparkCluster(tmp_path_factory.mktemp("spark-cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One PostgreSQL for the whole run."""
    # Where root runs the tests, another user must reach the data, and pytest's folders are for their owner alone.
    with tempfile.TemporaryDirectory(prefix="frazil-postgres-") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), data=Path(folder) / "data") as server:
            yield server


@pytest.fixture
def topic(kafka: EmbeddedKafka, request: pytest.FixtureRequest) -> TopicFactory:
    """`topic(partitions=1, **config)` creates a topic for this test only, and returns its name.

    In the names of settings, write dots as underscores: `topic(4, cleanup_policy="compact")`.
    """
    serial = itertools.count(1)
    base = "".join(c if c.isalnum() else "-" for c in request.node.name)[:80]

    def make(partitions: int = 1, **config: str) -> str:
        name = f"{base}-{next(serial)}-{os.urandom(3).hex()}"
        kafka.create_topic(name, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return name

    return make


@pytest.fixture
def frazil_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set FRAZIL_HOME to a folder that only this test uses."""
    home = tmp_path / "frazil-home"
    monkeypatch.setenv("FRAZIL_HOME", str(home))
    return home


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode replays in this process. A child process takes a second to start."""
    from frazil.dead_letters import replay  # tests that replay nothing start without it

    stage = replay.stage
    monkeypatch.setattr(replay, "stage", lambda *args, **more: stage(*args, **{**more, "isolated": False}))


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The FRAZIL_HOME whose embedded catalog is `default` in the session's Spark."""
    return tmp_path_factory.mktemp("spark-home")


@pytest.fixture(scope="session")
def spark(spark_home: Path) -> Iterator[Any]:
    """One Spark session for the whole run, with Iceberg's runtime and an embedded catalog, like a writer's."""
    from pyspark.sql import SparkSession  # tests that need no Spark start without it

    from frazil.spark.class_archive import lean_java_options

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAZIL_HOME", str(spark_home))
        patch.setenv("HOME", str(spark_home))
        catalog = spark_properties(None)
    builder = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.jars", ",".join(str(jar) for name in SPARK_JARS for jar in jars.ensure_jars(name)))
        .config("spark.driver.extraJavaOptions", lean_java_options())
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config("spark.sql.warehouse.dir", str(spark_home / "spark-warehouse"))
    )
    for key, value in catalog.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


class Writing:
    """A writer in a thread."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def outcome(self, *, within_s: float = 120) -> BaseException | None:
        """Wait until the writer ends without having been stopped. Return the error that ended it."""
        self._thread.join(within_s)
        assert not self.runs, f"the writer still runs after {within_s:.0f} s"
        error, self._error = self._error, None
        return error

    def end(self) -> BaseException | None:
        self._writer.stop()
        return self.outcome()

    def _run(self) -> None:
        try:
            self._writer.run()
        except BaseException as error:
            self._error = error


class DeclaredStream:
    """A stream of one test: its YAML, its topic, its writer as a process, and its table as a reader sees it."""

    def __init__(self, folder: Path, *, name: str, topic: str, bootstrap: str, spark: Any = None) -> None:
        self.name, self.topic, self.bootstrap, self._spark = name, topic, bootstrap, spark
        self.streams = folder / "streams"
        self.streams.mkdir(exist_ok=True)
        self.declare()

    def declare(self, extra: str = "") -> None:
        """Write the YAML: a table with an id, an event time and a text, partitioned by the event's day."""
        (self.streams / f"{self.name}.yaml").write_text(
            f"name: {self.name}\n"
            f"source: {{topics: [{self.topic}], format: json, bootstrap-servers: '{self.bootstrap}'}}\n"
            f"table: test.{self.name}\n"
            "schema: {id: long not null, at: timestamptz not null, note: string}\n"
            "event-time: at\n"
            "partition-by: [day(at)]\n" + (extra or "commit: {interval: 1s}\n")
        )

    @property
    def spec(self) -> StreamSpec:
        return load_stream(self.streams / f"{self.name}.yaml")

    def produce(self, values: Iterable[bytes | None], *, partitions: int = 1) -> None:
        """Send values round robin over the partitions, and wait until the broker has them.

        Sends one request at a time, so that a retried request cannot arrive after a later one.
        """
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, "max.in.flight": 1})
        for number, value in enumerate(values):
            producer.produce(self.topic, value=value, partition=number % partitions)
            producer.poll(0)
        assert producer.flush(30) == 0

    def command(self, *arguments: str, without_jvm: bool = False) -> list[str]:
        """Return the command that runs the writer as a separate process."""
        here = Path(__file__).parent
        main = here / "writer_without_jvm.py" if without_jvm else here.parent / "spark_apps" / "write_stream.py"
        return [sys.executable, str(main), self.name, "--streams", str(self.streams), *arguments]

    def run(self, *arguments: str, within_s: float = 250) -> subprocess.CompletedProcess[str]:
        """Run the writer's process to its end, without a JVM."""
        command = self.command(*arguments, without_jvm=True)
        return subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False)

    def writer(self, *, until_caught_up: bool = False) -> Any:
        """Return a writer in this process: on the session's Spark if the test uses it, otherwise without a JVM."""
        from frazil.stream.spark_engine import SparkEngine  # tests that need no writer start without it
        from frazil.stream.writer import Writer
        from tests.in_process_engine import InProcessEngine

        engine = InProcessEngine() if self._spark is None else SparkEngine(self.spec, self._spark)
        return Writer(self.spec, until_caught_up=until_caught_up, engine=engine)

    def catch_up(self) -> None:
        """Write all records that Kafka has now, with a writer in this process. Raises the writer's error."""
        self.writer(until_caught_up=True).run()

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Run a writer in a thread of this process, and stop it at the end of the block.

        Raises the error that ended the writer, unless `Writing.outcome` has already returned it.
        """
        running = Writing(self.writer())
        try:
            yield running
        finally:
            error = running.end()
        if error is not None:
            raise error

    def table(self, suffix: str = "") -> Table:
        return load_catalog(None).load_table(f"test.{self.name}{suffix}")

    def outage(self) -> str:
        """Return the outage that the writer waits out, according to its heartbeat; empty if there is none."""
        heartbeat = Heartbeat.read(run_folder(self.name))
        return (heartbeat and heartbeat.outage) or ""

    def has_rows(self, count: int) -> bool:
        """Return whether the newest snapshot's summary counts at least `count` rows; False without a table."""
        try:
            snapshot = self.table().current_snapshot()
        except NoSuchTableError:
            return False
        return bool(snapshot and snapshot.summary and int(snapshot.summary["total-records"] or 0) >= count)

    def ids(self) -> list[int]:
        """Return the ids in the table, sorted, with duplicates."""
        return sorted(self.table().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())


@pytest.fixture
def stream(
    tmp_path: Path,
    kafka: EmbeddedKafka,
    topic: TopicFactory,
    frazil_home: Path,  # noqa: ARG001
    requested_spark: Any,
) -> DeclaredStream:
    """A declared stream that reads a new topic of four partitions, with its own FRAZIL_HOME."""
    return DeclaredStream(tmp_path, name="events", topic=topic(4), bootstrap=kafka.bootstrap, spark=requested_spark)


@pytest.fixture
def frazil(stream: DeclaredStream) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`frazil("audit", "events")` runs the command on the test's stream, in this process. Prompts get no answer."""
    from frazil.cli.main import frazil as command  # tests that need no command start without it

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = CliRunner().invoke(command, [*arguments, "--streams", str(stream.streams)])
        error = done.exception
        if isinstance(error, FrazilError):  # as frazil.cli.main.main ends
            return subprocess.CompletedProcess(
                arguments, error.exit_code, done.stdout, f"{type(error).__name__}: {error}"
            )
        if error is not None and not isinstance(error, SystemExit):
            raise error
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return call


@pytest.fixture
def requested_spark(request: pytest.FixtureRequest) -> Any:
    """The Spark session for writers in this process if the test requests `spark`; None otherwise."""
    return request.getfixturevalue("spark") if "spark" in request.fixturenames else None


@pytest.fixture(scope="session")
def declared_stream() -> type[DeclaredStream]:
    """The class `DeclaredStream`, for tests that need other arguments than `stream` uses."""
    return DeclaredStream


def one_event(number: int) -> bytes:
    """Return one record of `DeclaredStream`. Event times begin in 2024, with ten records per second."""
    hour, minute, second = number // 36000 % 24, number // 600 % 60, number // 10 % 60
    return b'{"id": %d, "at": "2024-01-01T%02d:%02d:%02dZ", "note": "x"}' % (number, hour, minute, second)


@pytest.fixture(scope="session")
def event() -> Callable[[int], bytes]:
    """`event(n)` returns the n-th record."""
    return one_event


@pytest.fixture
def events() -> Callable[[Iterable[int]], Iterator[bytes]]:
    """`events(range(n))` returns n records."""
    return lambda numbers: map(one_event, numbers)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """`eventually(look, within_s=120)`: see `tests.polling`."""
    return polling.eventually


@pytest.fixture
def throughout() -> Callable[..., None]:
    """`throughout(look, for_s=8)`: see `tests.polling`."""
    return polling.throughout


@pytest.fixture
def in_sparks_catalog(stream: Any, spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Move the stream to the catalog that the session's Spark has opened, under a unique name. Declare it again."""
    monkeypatch.setenv("FRAZIL_HOME", str(spark_home))
    stream.name = f"maintained_{os.urandom(3).hex()}"
    return stream
