"""Loads declared streams from YAML, and reports all problems of a file in one SpecError. Does not import PyIceberg,
because Airflow's DAG processor loads streams often.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from frazil.errors import SpecError
from frazil.spec.conflicts import find_conflicts, find_harmful_writes
from frazil.spec.model import StreamSpec
from frazil.spec.problems import describe
from frazil.spec.routed_stream import find_feeding_streams, list_windowed_views
from frazil.spec.yaml_file import FileCache, read_mapping

DEFAULTS_FILE = "_defaults.yaml"


def load_stream(path: Path) -> StreamSpec:
    """Load a stream. Raises SpecError, which lists for every problem the file, key, value and allowed values."""
    return _STREAMS.get(path)


def _load_stream(path: Path) -> StreamSpec:
    return validate_stream(read_stream(path), path)


def read_stream(path: Path) -> dict[str, Any]:
    """Return the content of one file, merged with the folder's defaults, without validation. Raises SpecError."""
    declared = read_mapping(path)
    return _merge(read_defaults(path.parent), declared)


def read_defaults(folder: Path) -> Mapping[str, Any]:
    """Return a folder's `_defaults.yaml`, without validation; empty if it is missing. Raises SpecError."""
    file = folder / DEFAULTS_FILE
    return read_mapping(file) if file.exists() else {}


def validate_stream(declared: Mapping[str, Any], path: Path) -> StreamSpec:
    try:
        return StreamSpec.model_validate(declared, by_alias=True, by_name=False, context={"folder": path.parent})
    except ValidationError as error:
        raise SpecError(describe(error, declared, path, lambda key: _find_file_of_key(key, path))) from None


def _find_file_of_key(key: str, path: Path) -> Path:
    with suppress(SpecError):
        if _has_key(read_defaults(path.parent), key) and not _has_key(read_mapping(path), key):
            return path.parent / DEFAULTS_FILE
    return path


def _has_key(declared: Mapping[str, Any], key: str) -> bool:
    """Return whether a dotted key, or the list that contains it, is declared. Names may contain dots."""
    inner: object = declared
    parts = key.split(".")
    while parts and isinstance(inner, Mapping):
        names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        name = next((name for name in names if name in inner), None)
        if name is None:
            return False
        inner, parts = inner[name], parts[name.count(".") + 1 :]
    return True


def load_streams(folder: Path) -> dict[str, StreamSpec]:
    """Load all streams of a folder. Raises SpecError with the problems of all files, and the conflicts."""
    if not folder.is_dir():
        raise SpecError(
            f"{folder} is not a folder; set the folder of declared streams with --streams or FRAZIL_STREAMS"
        )
    loaded: dict[Path, StreamSpec] = {}
    failures: list[str] = []
    for path in list_stream_files(folder):
        try:
            loaded[path] = load_stream(path)
        except SpecError as error:
            failures.append(str(error))
    failures.extend(find_conflicts(loaded))
    if failures:
        raise SpecError("\n".join(failures))
    return {spec.name: spec for spec in sorted(loaded.values(), key=lambda spec: spec.name)}


def load_valid_streams(folder: Path) -> tuple[list[StreamSpec], list[str]]:
    """Return the valid streams, and the problems of other files. Raises SpecError if there are neither."""
    specs: list[StreamSpec] = []
    errors: list[str] = []
    for path in list_stream_files(folder) if folder.is_dir() else ():
        try:
            specs.append(load_stream(path))
        except SpecError as error:
            errors.append(str(error))
    if not specs and not errors:
        raise no_stream_error(folder)
    return sorted(specs, key=lambda spec: spec.name), errors


def no_stream_error(folder: Path) -> SpecError:
    return SpecError(f"{folder} declares no stream; set the folder with --streams or FRAZIL_STREAMS")


def find_stream(folder: Path, name: str) -> StreamSpec:
    """Load one stream of a folder, whose other files may be broken. Raises SpecError like `find_file`."""
    return load_stream(find_file(folder, name))


def check_other_streams(folder: Path, spec: StreamSpec) -> None:
    """Raise SpecError if the stream would harm another one: `frazil validate` may not have been run."""
    writes_others = spec.sinks.has_routed_tables or spec.dead_letters.table is not None
    loaded: dict[Path, StreamSpec] = {}
    for path in list_stream_files(folder):
        with suppress(SpecError, OSError):
            if writes_others or spec.table.identifier in path.read_text(errors="replace"):
                loaded[path] = load_stream(path)
    mine = next((path for path, one in loaded.items() if one.name == spec.name), None)
    if mine is not None and (found := find_harmful_writes(mine, loaded)):
        raise SpecError("\n".join(found))


def find_file(folder: Path, name: str) -> Path:
    """Return the file that declares a stream, even if it is not valid. Raises SpecError with the known names."""
    known: dict[str, Path] = {}
    failures: list[str] = []
    for path in list_stream_files(folder):
        try:
            declared = read_mapping(path).get("name")
        except SpecError as error:
            failures.append(str(error))
            continue
        if declared == name and name in known:
            raise SpecError(f"the stream {name!r} is declared twice: {known[name]} and {path}; rename one")
        known[str(declared)] = path
    if name in known:
        return known[name]
    if shared := sorted(stream for stream, path in known.items() if _read_application(path) == name):
        raise SpecError(f"{name!r} is an application, not a stream; use one of its streams: {', '.join(shared)}")
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    message = f"no stream {name!r} in {folder}; {hint}known: {', '.join(sorted(known)) or 'none'}"
    raise SpecError("\n".join([message, *failures]))


def _read_application(path: Path) -> str | None:
    with suppress(SpecError):
        return load_stream(path).application
    return None


def find_streams_of(folder: Path, table: str) -> tuple[StreamSpec, ...]:
    """Return the streams of a table, as `view_from_table` does. Raises SpecError without any."""
    valid: list[StreamSpec] = []
    failures: list[str] = []
    for path in list_stream_files(folder):
        try:
            valid.append(load_stream(path))
        except SpecError as error:
            if table in path.read_text(errors="replace"):
                raise
            failures.append(str(error))
    found = find_feeding_streams(valid, table)
    if not found:
        known = sorted({each.table.identifier for spec in valid for each in list_windowed_views(spec)})
        message = f"no stream in {folder} writes to the table {table!r}; known tables: {', '.join(known) or 'none'}"
        raise SpecError("\n".join([message, *failures]))
    return tuple(found)


def list_stream_files(folder: Path) -> list[Path]:
    files = (path for pattern in ("*.yaml", "*.yml") for path in folder.glob(pattern))
    return sorted(path for path in files if not path.name.startswith(("_", ".")))


def _merge(beneath: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(beneath)
    for key, value in above.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


_STREAMS = FileCache(_load_stream, other_files=(DEFAULTS_FILE,))


MAX_LISTING_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Listing:
    at_s: float
    files: Mapping[str, Path | None]
    """The file that declares each stream; None for a stream that several files declare."""


class FolderIndex:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listings: dict[Path, _Listing] = {}
        self._one_at_a_time = threading.Lock()

    def find_file(self, folder: Path, stream: str) -> Path | None:
        with self._one_at_a_time:
            listing = self._listings.get(folder)
            if listing is None or self._clock() - listing.at_s >= MAX_LISTING_AGE_S:
                listing = self._listings[folder] = _Listing(self._clock(), _map_files(folder))
        return listing.files.get(stream)


def _map_files(folder: Path) -> dict[str, Path | None]:
    found: dict[str, Path | None] = {}
    try:
        os.listdir(folder)  # noqa: PTH208 - glob() returns nothing for an unreadable folder
        paths = list_stream_files(folder)
    except OSError:
        return {}
    for path in paths:
        try:
            name = str(read_mapping(path).get("name"))
        except SpecError:
            continue
        found[name] = None if name in found else path
    return found


FOLDER_INDEX = FolderIndex()
