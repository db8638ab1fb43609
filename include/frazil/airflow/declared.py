"""The streams of a folder as Dags see them: one that cannot be read keeps its place, and takes no other with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from frazil.errors import SpecError
from frazil.spec.conflicts import conflicts
from frazil.spec.load import load_stream, stream_files
from frazil.spec.model import STREAM_NAME, StreamSpec
from frazil.spec.yaml_file import read_mapping


@dataclass(frozen=True, slots=True)
class DeclaredStream:
    """One stream, its spec where that is sound, and what is wrong where it is not."""

    name: str
    spec: StreamSpec | None
    problem: str | None


def declared_streams(folder: Path) -> list[DeclaredStream]:
    """Every stream that a file of the folder declares, by name; each name once."""
    sound: dict[Path, StreamSpec] = {}
    found: dict[str, DeclaredStream] = {}
    for path in stream_files(folder):
        try:
            sound[path] = load_stream(path)
        except SpecError as error:
            name = _name_in(path)
            found[name] = DeclaredStream(name, None, str(error))
    clashes = conflicts(sound)
    for path, spec in sound.items():
        own = "\n".join(clash for clash in clashes if clash.startswith(f"{path}: "))
        before = found.get(spec.name)
        problem = "\n".join(filter(None, [before.problem if before else None, own])) or None
        found[spec.name] = DeclaredStream(spec.name, spec, problem)
    return [found[name] for name in sorted(found)]


def _name_in(path: Path) -> str:
    """The name that a broken file gives its stream, if that much can be read, else its own name made to fit."""
    try:
        name = str(read_mapping(path).get("name", ""))
    except SpecError:
        declared = re.search(r"^name:\s*([\w-]+)\s*$", path.read_text(errors="replace"), re.MULTILINE)
        name = declared[1] if declared else ""
    if re.match(STREAM_NAME, name):
        return name
    return re.sub(r"[^a-z0-9_-]", "-", path.stem.lower())
