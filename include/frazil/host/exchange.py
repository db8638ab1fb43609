"""Small JSON documents through which a writer, its planner and its supervisor communicate.

The documents are files in the run folder. For processes without a common folder, `open_exchange` could return another
kind of `Exchange`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from frazil.host.json_file import read_json, replace_json


class Exchange(Protocol):
    """A set of named JSON documents. Each is replaced as a whole."""

    def read(self, name: str) -> Any:
        """Return the parsed document; None if it does not exist. Raises ValueError if it is not JSON."""

    def write(self, name: str, value: Any) -> None:
        """Replace the document. A reader sees either the old or the new document."""

    def clear(self, name: str) -> None:
        """Remove the document, if it exists."""


@dataclass(frozen=True, slots=True)
class FolderExchange:
    """An exchange whose documents are files in one folder. The first write creates the folder."""

    folder: Path

    def read(self, name: str) -> Any:
        return read_json(self.folder / name)

    def write(self, name: str, value: Any) -> None:
        replace_json(self.folder / name, value)

    def clear(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


def open_exchange(location: str | Path) -> Exchange:
    """Return the exchange at a location, which must be a folder."""
    return FolderExchange(Path(location))
