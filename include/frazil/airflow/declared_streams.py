"""Reads the declared streams of a folder for DAGs. If a file is broken, its last valid declaration is used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from frazil import clock
from frazil.aggregate.spec import AGGREGATIONS
from frazil.errors import SpecError
from frazil.spec.conflicts import find_conflicts
from frazil.spec.last_valid import STREAMS, find_declared
from frazil.spec.load import find_stream, find_streams_of
from frazil.spec.model import STREAM_NAME, StreamSpec
from frazil.spec.routed_stream import find_feeding_streams, view_from_table
from frazil.spec.yaml_file import read_mapping


@dataclass(frozen=True, slots=True)
class DeclaredStream:
    name: str
    spec: StreamSpec | None
    """The current or last valid declaration; None if the file has never been valid."""
    problem: str | None
    removed: bool = False
    """Whether its file was deleted: running tasks end, and no new task starts."""
    missing: bool = False
    """Whether its file is missing, perhaps temporarily: no alert fires until the stream counts as removed."""
    current: bool = False
    """Whether `spec` is the content of its file; `problem` is then a conflict with another file."""


def all_streams(folder: Path) -> list[DeclaredStream]:
    valid: dict[Path, StreamSpec] = {}
    streams: dict[str, DeclaredStream] = {}
    for stream in find_declared(folder, STREAMS, now_ms=clock.now_ms()):
        if stream.spec is not None and stream.problem is None:
            valid[stream.path] = stream.spec
        else:
            name = stream.spec.name if stream.spec else _read_name(stream.path)
            streams[name] = DeclaredStream(name, stream.spec, stream.problem, stream.removed, stream.missing)
    clashes = find_conflicts(valid)
    for path, spec in valid.items():
        conflicts = "\n".join(clash for clash in clashes if clash.startswith(f"{path}: "))
        existing = streams.get(spec.name)
        problem = "\n".join(filter(None, [existing.problem if existing else None, conflicts])) or None
        streams[spec.name] = DeclaredStream(spec.name, spec, problem, current=True)
    return [streams[name] for name in sorted(streams)]


def declared_streams(folder: Path) -> list[DeclaredStream]:
    return [stream for stream in all_streams(folder) if not stream.removed]


def valid_specs(folder: Path) -> list[StreamSpec]:
    return [stream.spec for stream in declared_streams(folder) if stream.spec is not None]


def streams_feeding(folder: Path, table: str) -> tuple[StreamSpec, ...]:
    """Return the streams that feed a table. Raises SpecError if none exists, or if an invalid file names it."""
    streams = [stream for stream in find_declared(folder, STREAMS, now_ms=clock.now_ms()) if not stream.removed]
    specs = find_feeding_streams((stream.spec for stream in streams if stream.spec is not None), table)
    unknown = any(stream.spec is None and table in _read_text(stream.path) for stream in streams)
    return tuple(specs) if specs and not unknown else find_streams_of(folder, table)


def has_no_stream(folder: Path, table: str) -> bool:
    """Return whether no stream feeds a table. A file that was never valid counts if it contains the table's name."""
    streams = [stream for stream in find_declared(folder, STREAMS, now_ms=clock.now_ms()) if not stream.removed]
    return not any(
        view_from_table(stream.spec, table) if stream.spec else table in _read_text(stream.path) for stream in streams
    )


def find_declared_stream(folder: Path, name: str) -> StreamSpec:
    specs = (stream.spec for stream in declared_streams(folder) if stream.name == name)
    return next((spec for spec in specs if spec is not None), None) or find_stream(folder, name)


def check_declarations(streams: str | Path, *, aggregations: str | Path) -> None:
    """Raise SpecError with all current problems of both folders. Airflow shows it as an import error."""
    problems = [stream.problem for stream in declared_streams(Path(streams)) if stream.problem and not stream.missing]
    files = find_declared(Path(aggregations), AGGREGATIONS, now_ms=clock.now_ms())
    problems += [stream.problem for stream in files if stream.problem and not stream.removed and not stream.missing]
    if problems:
        raise SpecError("\n".join(problems))


def _read_name(path: Path) -> str:
    try:
        name = str(read_mapping(path).get("name", ""))
    except SpecError:
        declared = re.search(r"^name:\s*([\w-]+)\s*$", _read_text(path), re.MULTILINE)
        name = declared[1] if declared else ""
    if re.match(STREAM_NAME, name):
        return name
    return re.sub(r"[^a-z0-9_-]", "-", path.stem.lower())


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # no permission, or the file was deleted after it was listed
        return ""
