"""Small JSON files in the run folder, through which a writer, its planner and its supervisor communicate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frazil.host.json_file import read_json, replace_json


@dataclass(frozen=True, slots=True)
class Exchange:
    """A set of named JSON documents, each replaced as a whole. The first write creates the folder."""

    folder: Path

    def read(self, name: str) -> Any:
        """Return the parsed document; None if it does not exist. Raises ValueError if it is not JSON."""
        return read_json(self.folder / name)

    def write(self, name: str, value: Any) -> None:
        """Replace the document. A reader sees either the old or the new document."""
        replace_json(self.folder / name, value)

    def clear(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


def open_exchange(location: str | Path) -> Exchange:
    return Exchange(Path(location))
