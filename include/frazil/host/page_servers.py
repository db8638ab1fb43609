"""Which processes of this host serve the operations page, and with which of frazil's files each began.

<home>/page/servers/<host>-<pid>.json

So whoever upgrades frazil learns of a process that goes on with the old files before a view of it fails.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from frazil import installed
from frazil.home import home
from frazil.host.json_file import read_json, replace_json
from frazil.host.processes import is_alive, mark
from frazil.host.records import ProcessMark


@dataclass(frozen=True, slots=True)
class PageServer:
    """A process that runs. `folder` is the package that it imported, and `files` what was in it."""

    process: ProcessMark
    folder: str
    files: str

    @property
    def is_outdated(self) -> bool:
        return installed.fingerprint(Path(self.folder)) != self.files


def announce() -> None:
    """To be called by such a process when it begins. Raises OSError."""
    own = PageServer(mark(os.getpid()), str(installed.FOLDER), installed.fingerprint(installed.FOLDER))
    for file, server in _records():
        if server is None or not is_alive(server.process):
            file.unlink(missing_ok=True)
    replace_json(_folder() / f"{socket.gethostname()}-{own.process.pid}.json", asdict(own))


def announced() -> list[PageServer]:
    """Those that run now. Raises OSError."""
    return [server for _, server in _records() if server is not None and is_alive(server.process)]


def _records() -> Iterator[tuple[Path, PageServer | None]]:
    """Of this host; None for what another version wrote."""
    for file in sorted(_folder().glob(f"{socket.gethostname()}-*.json")):
        try:
            told = read_json(file)
            yield file, PageServer(ProcessMark(**told["process"]), told["folder"], told["files"])
        except (ValueError, TypeError, KeyError):
            yield file, None


def _folder() -> Path:
    return home() / "page" / "servers"
