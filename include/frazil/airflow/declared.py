"""The streams of a folder as DAGs see them: a broken file keeps its last sound declaration, and affects no other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from frazil import clock
from frazil.aggregate.spec import AGGREGATIONS
from frazil.errors import SpecError
from frazil.spec.conflicts import conflicts
from frazil.spec.last_sound import STREAMS, find_declared
from frazil.spec.load import find_stream, streams_of
from frazil.spec.model import STREAM_NAME, StreamSpec
from frazil.spec.routed_stream import seen_by
from frazil.spec.yaml_file import read_mapping


@dataclass(frozen=True, slots=True)
class DeclaredStream:
    """One stream: its current declaration, or the last sound one, and what is wrong with the file now."""

    name: str
    spec: StreamSpec | None
    """The current or last valid declaration; None if the file has never been valid."""
    problem: str | None
    removed: bool = False
    """Its file is gone: whatever still runs for it ends, and nothing new starts."""
    missing: bool = False
    """Whether its file is missing, perhaps for a moment: no alert fires before it counts as removed."""
    current: bool = False
    """Whether `spec` is its file's current content, so that the problem is a conflict with another file."""


def all_streams(folder: Path) -> list[DeclaredStream]:
    """Every stream of the folder, once each and sorted by name, recently removed ones included."""
    sound: dict[Path, StreamSpec] = {}
    found: dict[str, DeclaredStream] = {}
    for one in find_declared(folder, STREAMS, now_ms=clock.now_ms()):
        if one.spec is not None and one.problem is None:
            sound[one.path] = one.spec
        else:
            name = one.spec.name if one.spec else _name_in(one.path)
            found[name] = DeclaredStream(name, one.spec, one.problem, one.removed, one.missing)
    clashes = conflicts(sound)
    for path, spec in sound.items():
        own = "\n".join(clash for clash in clashes if clash.startswith(f"{path}: "))
        before = found.get(spec.name)
        problem = "\n".join(filter(None, [before.problem if before else None, own])) or None
        found[spec.name] = DeclaredStream(spec.name, spec, problem, current=True)
    return [found[name] for name in sorted(found)]


def declared_streams(folder: Path) -> list[DeclaredStream]:
    """Every stream that a file of the folder declares, once each and sorted by name."""
    return [stream for stream in all_streams(folder) if not stream.removed]


def streams_feeding(folder: Path, table: str) -> tuple[StreamSpec, ...]:
    """The streams that feed a table, as it sees them, sorted by name; for a broken file, its last sound declaration.

    Raises SpecError if there is none, or if a file that has never been sound names the table.
    """
    found = [one for one in find_declared(folder, STREAMS, now_ms=clock.now_ms()) if not one.removed]
    feeding = [seen for one in found if one.spec is not None and (seen := seen_by(one.spec, table)) is not None]
    unknown = any(one.spec is None and table in _text(one.path) for one in found)
    return tuple(sorted(feeding, key=lambda s: s.name)) if feeding and not unknown else streams_of(folder, table)


def nobody_feeds(folder: Path, table: str) -> bool:
    """Whether every stream that fed a table was removed. False while a file that has never been sound might feed it."""
    found = [one for one in find_declared(folder, STREAMS, now_ms=clock.now_ms()) if not one.removed]
    return not any(seen_by(one.spec, table) if one.spec else table in _text(one.path) for one in found)


def declared_stream(folder: Path, name: str) -> StreamSpec:
    """One stream, in its last sound declaration. Raises SpecError if it has never been sound or does not exist."""
    specs = (stream.spec for stream in declared_streams(folder) if stream.name == name)
    return next((spec for spec in specs if spec is not None), None) or find_stream(folder, name)


def check_declarations(streams: str | Path, *, aggregations: str | Path) -> None:
    """Raises SpecError with everything that is wrong in the folders now; Airflow shows it as an import error."""
    problems = [found.problem for found in declared_streams(Path(streams)) if found.problem and not found.missing]
    files = find_declared(Path(aggregations), AGGREGATIONS, now_ms=clock.now_ms())
    problems += [found.problem for found in files if found.problem and not found.removed and not found.missing]
    if problems:
        raise SpecError("\n".join(problems))


def _name_in(path: Path) -> str:
    """The stream's name in a broken file, if that much can be read; otherwise the file's name, made to fit."""
    try:
        name = str(read_mapping(path).get("name", ""))
    except SpecError:
        declared = re.search(r"^name:\s*([\w-]+)\s*$", _text(path), re.MULTILINE)
        name = declared[1] if declared else ""
    if re.match(STREAM_NAME, name):
        return name
    return re.sub(r"[^a-z0-9_-]", "-", path.stem.lower())


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # its permissions, or it went since it was listed
        return ""
