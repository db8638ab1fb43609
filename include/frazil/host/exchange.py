"""What a writer, its planner and its supervisor tell each other: small JSON documents, each replaced whole.

Today they are files of the run folder. A host whose processes share no folder serves them from somewhere else, by
another `Exchange` that `open_exchange` returns for its locations.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from frazil.host.json_file import read_json, replace_json


class Exchange(Protocol):
    def read(self, name: str) -> Any:
        """The document as JSON; None where there is none. Raises ValueError for what is no JSON."""

    def write(self, name: str, value: Any) -> None:
        """Replace the document: a reader sees the old one or the new one."""

    def clear(self, name: str) -> None:
        """Remove the document, if it is there."""


@dataclass(frozen=True, slots=True)
class FolderExchange:
    """Documents as files of one folder, which is made when the first is written."""

    folder: Path

    def read(self, name: str) -> Any:
        return read_json(self.folder / name)

    def write(self, name: str, value: Any) -> None:
        replace_json(self.folder / name, value)

    def clear(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


def open_exchange(location: str | Path) -> Exchange:
    """The exchange at a location, which is a folder."""
    return FolderExchange(Path(location))
