"""Records in `<home>/page/servers` which processes of this host serve the page, and with which version of frazil."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from frazil import installed
from frazil.home import home
from frazil.host.exchange import read_json, replace_json
from frazil.host.processes import identify_process, is_alive
from frazil.host.records import ProcessMark
from frazil.typed import convert


@dataclass(frozen=True, slots=True)
class PageServer:
    """A process that serves the page, and a hash of the package's files when it imported them."""

    process: ProcessMark
    folder: str
    files: str

    @property
    def is_outdated(self) -> bool:
        return installed.hash_files(Path(self.folder)) != self.files


def register_page_server() -> None:
    """Record that this process serves the page, and remove records of ended processes. Raises OSError."""
    own = PageServer(identify_process(os.getpid()), str(installed.FOLDER), installed.hash_files(installed.FOLDER))
    for file, server in _read_records():
        if server is None or not is_alive(server.process):
            file.unlink(missing_ok=True)
    replace_json(_folder() / f"{socket.gethostname()}-{own.process.pid}.json", asdict(own))


def list_running_servers() -> list[PageServer]:
    return [server for _, server in _read_records() if server is not None and is_alive(server.process)]


def _read_records() -> Iterator[tuple[Path, PageServer | None]]:
    for file in sorted(_folder().glob(f"{socket.gethostname()}-*.json")):
        try:
            yield file, convert(read_json(file), PageServer)
        except ValueError:
            yield file, None


def _folder() -> Path:
    return home() / "page" / "servers"
