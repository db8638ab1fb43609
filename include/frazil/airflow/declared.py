"""The streams of a folder as DAGs see them: one that is broken stays as it was, and takes no other with it."""

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
from frazil.spec.yaml_file import read_mapping


@dataclass(frozen=True, slots=True)
class DeclaredStream:
    """One stream, what its file declares or declared when it was sound last, and what is wrong with it now."""

    name: str
    spec: StreamSpec | None
    """None where it never was sound."""
    problem: str | None
    removed: bool = False
    """Its file is gone: what still runs of it ends, and nothing begins."""


def all_streams(folder: Path) -> list[DeclaredStream]:
    """Every stream of the folder by name, each name once, with those that were removed a while ago."""
    sound: dict[Path, StreamSpec] = {}
    found: dict[str, DeclaredStream] = {}
    for one in find_declared(folder, STREAMS, now_ms=clock.now_ms()):
        if one.spec is not None and one.problem is None:
            sound[one.path] = one.spec
        else:
            name = one.spec.name if one.spec else _name_in(one.path)
            found[name] = DeclaredStream(name, one.spec, one.problem, one.removed)
    clashes = conflicts(sound)
    for path, spec in sound.items():
        own = "\n".join(clash for clash in clashes if clash.startswith(f"{path}: "))
        before = found.get(spec.name)
        problem = "\n".join(filter(None, [before.problem if before else None, own])) or None
        found[spec.name] = DeclaredStream(spec.name, spec, problem)
    return [found[name] for name in sorted(found)]


def declared_streams(folder: Path) -> list[DeclaredStream]:
    """Every stream that a file of the folder declares, by name; each name once."""
    return [stream for stream in all_streams(folder) if not stream.removed]


def streams_feeding(folder: Path, table: str) -> tuple[StreamSpec, ...]:
    """The streams that feed a table, by name, broken ones as they were when they were sound last.

    Raises SpecError where there is none, and where a file that never was sound names the table.
    """
    found = [one for one in find_declared(folder, STREAMS, now_ms=clock.now_ms()) if not one.removed]
    feeding = [one.spec for one in found if one.spec is not None and one.spec.table.identifier == table]
    unknown = any(one.spec is None and table in _text(one.path) for one in found)
    return tuple(sorted(feeding, key=lambda s: s.name)) if feeding and not unknown else streams_of(folder, table)


def nobody_feeds(folder: Path, table: str) -> bool:
    """Whether every stream that fed a table was removed; not where a file that never was sound may be of one."""
    found = [one for one in find_declared(folder, STREAMS, now_ms=clock.now_ms()) if not one.removed]
    return not any(one.spec.table.identifier == table if one.spec else table in _text(one.path) for one in found)


def declared_stream(folder: Path, name: str) -> StreamSpec:
    """One stream, as it was when it was sound last. Raises SpecError where it never was, or is not there."""
    specs = (stream.spec for stream in declared_streams(folder) if stream.name == name)
    return next((spec for spec in specs if spec is not None), None) or find_stream(folder, name)


def check_declarations(streams: str | Path, *, aggregations: str | Path) -> None:
    """Raises SpecError with what is wrong in the folders now: an import error of the DAG file that asks."""
    problems = [found.problem for found in declared_streams(Path(streams)) if found.problem]
    files = find_declared(Path(aggregations), AGGREGATIONS, now_ms=clock.now_ms())
    problems += [found.problem for found in files if found.problem and not found.removed]
    if problems:
        raise SpecError("\n".join(problems))


def _name_in(path: Path) -> str:
    """The name that a broken file gives its stream, if that much can be read, else its own name made to fit."""
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
