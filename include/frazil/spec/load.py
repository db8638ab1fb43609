"""Loads declared streams from YAML, and reports all problems of a file in one SpecError.

Does not import PyIceberg, because Airflow's DAG processor loads streams often.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from frazil.errors import SpecError
from frazil.spec.conflicts import find_conflicts, find_foreign_writes
from frazil.spec.file_cache import FileCache
from frazil.spec.model import StreamSpec
from frazil.spec.problems import describe
from frazil.spec.routed_stream import feeding, list_windowed_views
from frazil.spec.yaml_file import read_mapping

DEFAULTS_FILE = "_defaults.yaml"
"""File with settings for all streams of its folder."""


def load_stream(path: Path) -> StreamSpec:
    """Load the stream that a file declares, with defaults from `_defaults.yaml` in the same folder.

    Raises SpecError, which lists for every problem the file, the key, the value and the allowed values.
    """
    return _STREAMS.get(path)


def _load_stream(path: Path) -> StreamSpec:
    return validate_stream(read_stream(path), path)


def read_stream(path: Path) -> dict[str, Any]:
    """Return the content of one file, merged with the `_defaults.yaml` of its folder, without validation.

    The file's own values take precedence. Raises SpecError.
    """
    declared = read_mapping(path)
    return _merge(read_defaults(path.parent), declared)


def read_defaults(folder: Path) -> Mapping[str, Any]:
    """Return the settings in a folder's `_defaults.yaml`, without validation; an empty mapping if the file is missing.

    Raises SpecError if the file cannot be read.
    """
    file = folder / DEFAULTS_FILE
    return read_mapping(file) if file.exists() else {}


def validate_stream(declared: Mapping[str, Any], path: Path) -> StreamSpec:
    """Validate a declaration that was read from `path`. Raises SpecError like `load_stream`."""
    try:
        return StreamSpec.model_validate(declared, by_alias=True, by_name=False, context={"folder": path.parent})
    except ValidationError as error:
        raise SpecError(describe(error, declared, path, lambda key: _find_file_of_key(key, path))) from None


def _find_file_of_key(key: str, path: Path) -> Path:
    """Return the file that sets a key: `_defaults.yaml` if only that file has the key, otherwise the stream's own
    file.
    """
    with suppress(SpecError):
        if _has_key(read_defaults(path.parent), key) and not _has_key(read_mapping(path), key):
            return path.parent / DEFAULTS_FILE
    return path


def _has_key(declared: Mapping[str, Any], key: str) -> bool:
    """Return whether a dotted key is declared, or the list that it is an element of. Names may contain dots."""
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
    """Return all streams of a folder by name, sorted. Files whose names begin with an underscore or a dot are skipped.

    Raises SpecError with the problems of all files and the conflicts between streams.
    """
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
    """Return the valid streams of a folder, sorted by name, and the problems of the other files.

    Raises SpecError if there are neither streams nor problems.
    """
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
    """Return the error for a folder without declared streams."""
    return SpecError(f"{folder} declares no stream; set the folder with --streams or FRAZIL_STREAMS")


def find_stream(folder: Path, name: str) -> StreamSpec:
    """Load one stream of a folder by its name. Other files of the folder may be broken.

    Raises SpecError with the known names if no file declares the stream, or with the problems of its file.
    """
    return load_stream(find_file(folder, name))


def check_tables_are_unowned(folder: Path, spec: StreamSpec) -> None:
    """Check that no other stream owns the stream's dead-letter table or routed tables.

    Raises SpecError. Broken files are ignored. `frazil validate` checks this too, but may not have been run.
    """
    if not spec.sinks.can_follow and spec.dead_letters.table is None:
        return
    loaded: dict[Path, StreamSpec] = {}
    for path in list_stream_files(folder):
        with suppress(SpecError):
            loaded[path] = load_stream(path)
    mine = next((path for path, one in loaded.items() if one.name == spec.name), None)
    if mine is not None and (found := find_foreign_writes(mine, loaded)):
        raise SpecError("\n".join(found))


def find_file(folder: Path, name: str) -> Path:
    """Return the path of the file that declares a stream, even if the declaration is not valid.

    Raises SpecError with the known names if no file declares the stream.
    """
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
    """Return the shared application of a file's stream; None if it has none, or if the file is broken."""
    with suppress(SpecError):
        return load_stream(path).application
    return None


def find_streams_of(folder: Path, table: str) -> tuple[StreamSpec, ...]:
    """Return the streams that write to a table, sorted by name. A stream that routes to the table is returned as
    `view_from_table` returns it.

    Raises SpecError with the known tables if no stream writes to the table. Also raises SpecError if a broken file
    mentions the table, because the file's stream is unknown.
    """
    valid: list[StreamSpec] = []
    failures: list[str] = []
    for path in list_stream_files(folder):
        try:
            valid.append(load_stream(path))
        except SpecError as error:
            if table in path.read_text(errors="replace"):
                raise
            failures.append(str(error))
    found = feeding(valid, table)
    if not found:
        known = sorted({each.table.identifier for spec in valid for each in list_windowed_views(spec)})
        message = f"no stream in {folder} writes to the table {table!r}; known tables: {', '.join(known) or 'none'}"
        raise SpecError("\n".join([message, *failures]))
    return tuple(found)


def list_stream_files(folder: Path) -> list[Path]:
    """Return the files of a folder that declare streams, sorted by path."""
    files = (path for pattern in ("*.yaml", "*.yml") for path in folder.glob(pattern))
    return sorted(path for path in files if not path.name.startswith(("_", ".")))


def _merge(beneath: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively. Where both have a value that is not a mapping, the value in `above` is used."""
    merged = dict(beneath)
    for key, value in above.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


_STREAMS = FileCache(_load_stream, beside=(DEFAULTS_FILE,))
"""Cache of the streams by file."""
