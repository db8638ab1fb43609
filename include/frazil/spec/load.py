"""Loads declared streams from YAML, without PyIceberg: Airflow's DAG processor loads streams often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from frazil.errors import SpecError
from frazil.spec.conflicts import find_harmful_writes
from frazil.spec.model import StreamSpec
from frazil.spec.problems import PartialStream, complete, describe
from frazil.spec.routed_stream import find_feeding_streams, list_windowed_views
from frazil.spec.yaml_file import FileCache, read_mapping

DEFAULTS_FILE = "_defaults.yaml"


def load_stream(path: Path) -> StreamSpec:
    """Load a stream. Raises SpecError, which lists for every problem the file, key, value and allowed values."""
    return _STREAMS.get(path)


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


def load_partially(path: Path) -> PartialStream | None:
    """Return the valid parts of an invalid declaration; None if it is valid, or cannot be read."""
    try:
        declared = read_stream(path)
        StreamSpec.model_validate(declared, by_alias=True, by_name=False, context={"folder": path.parent})
    except SpecError:
        return None
    except ValidationError as error:
        return complete(error, declared, path.parent)
    return None


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


def _load_all(folder: Path, *, naming: str = "") -> tuple[dict[Path, StreamSpec], dict[Path, str]]:
    """Return the valid streams of a folder, and the problems of its other files, by path. Skips files without the text
    `naming`.
    """
    loaded: dict[Path, StreamSpec] = {}
    problems: dict[Path, str] = {}
    for path in list_stream_files(folder):
        if naming and not _mentions(path, naming):
            continue
        try:
            loaded[path] = load_stream(path)
        except SpecError as error:
            problems[path] = str(error)
    return loaded, problems


def describe_empty(folder: Path) -> str:
    """Return why a folder has no declarations."""
    return f"{folder} declares no stream" if folder.is_dir() else f"the folder {folder} does not exist"


def load_valid_streams(folder: Path) -> tuple[list[StreamSpec], list[str]]:
    """Return the valid streams, and the problems of other files. Raises SpecError if there are neither."""
    loaded, problems = _load_all(folder)
    if not loaded and not problems:
        raise SpecError(f"{describe_empty(folder)}; set the folder with --streams or FRAZIL_STREAMS")
    return sorted(loaded.values(), key=lambda spec: spec.name), [*problems.values()]


def find_stream(folder: Path, name: str) -> StreamSpec:
    """Load one stream of a folder. Other files of the folder may be broken. Raises SpecError like `find_file`."""
    return load_stream(find_file(folder, name))


def check_other_streams(folder: Path, spec: StreamSpec) -> None:
    """Raise SpecError if the stream would harm another one. Needed because users may not run `frazil validate`."""
    writes_others = spec.sinks.has_routed_tables or spec.dead_letters.table is not None
    loaded, _ = _load_all(folder, naming="" if writes_others else spec.table.identifier)
    mine = next((path for path, loaded_spec in loaded.items() if loaded_spec.name == spec.name), None)
    if mine is not None and (problems := find_harmful_writes(mine, loaded)):
        raise SpecError("\n".join(problems))


def find_file(folder: Path, name: str) -> Path:
    """Return the file that declares a stream, even if it is not valid. Raises SpecError with the known names."""
    files, failures = _map_files(folder)
    if name in files:
        first, *duplicates = files[name]
        if duplicates:
            raise SpecError(f"the stream {name!r} is declared twice: {first} and {duplicates[0]}; rename one")
        return first
    if name in failures:  # the file of this name cannot be read, and probably declares the stream
        raise SpecError(failures[name])
    loaded, _ = _load_all(folder)
    if shared := sorted(spec.name for spec in loaded.values() if spec.application == name):
        raise SpecError(f"{name!r} is an application, not a stream; use one of its streams: {', '.join(shared)}")
    close = get_close_matches(name, files, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    message = f"no stream {name!r} in {folder}; {hint}known: {', '.join(sorted(files)) or 'none'}"
    raise SpecError("\n".join([message, *failures.values()]))


def _map_files(folder: Path) -> tuple[dict[str, list[Path]], dict[str, str]]:
    """Return the files by the stream that each declares, and the problems of the other files by their stem."""
    files: dict[str, list[Path]] = {}
    failures: dict[str, str] = {}
    for path in list_stream_files(folder):
        try:
            files.setdefault(str(read_mapping(path).get("name")), []).append(path)
        except SpecError as error:
            failures[path.stem] = str(error)
    return files, failures


def _mentions(path: Path, text: str) -> bool:
    """Return whether a file, or the defaults of its folder, has this text."""
    for file in (path, path.parent / DEFAULTS_FILE):
        with suppress(OSError):
            if text in file.read_text(errors="replace"):
                return True
    return False


def find_streams_of(folder: Path, table: str) -> tuple[StreamSpec, ...]:
    """Return the streams of a table, each as `view_from_table` returns it. Raises SpecError if the table has none."""
    loaded, problems = _load_all(folder)
    if unsure := [problem for path, problem in problems.items() if _mentions(path, table)]:
        raise SpecError(unsure[0])
    feeding = find_feeding_streams(loaded.values(), table)
    if not feeding:
        tables = sorted({each.table.identifier for spec in loaded.values() for each in list_windowed_views(spec)})
        message = f"no stream in {folder} writes to the table {table!r}; known tables: {', '.join(tables) or 'none'}"
        raise SpecError("\n".join([message, *problems.values()]))
    return tuple(feeding)


def list_stream_files(folder: Path) -> list[Path]:
    files = (path for pattern in ("*.yaml", "*.yml") for path in folder.glob(pattern))
    return sorted(path for path in files if not path.name.startswith(("_", ".")))


def _merge(beneath: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(beneath)
    for key, value in above.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


_STREAMS = FileCache(lambda path: validate_stream(read_stream(path), path), other_files=(DEFAULTS_FILE,))

MAX_LISTING_AGE_S = 1.0


class FolderIndex:
    """Finds the files of streams. Lists a folder again after `MAX_LISTING_AGE_S`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listings: dict[Path, tuple[float, Mapping[str, list[Path]]]] = {}
        """When each folder was listed, and its files by stream."""
        self._one_at_a_time = threading.Lock()

    def find_file(self, folder: Path, stream: str) -> Path | None:
        """Return the stream's file; None if no file or several files declare it, or if the folder is unreadable."""
        with self._one_at_a_time:
            now_s = self._clock()
            if folder not in self._listings or now_s - self._listings[folder][0] >= MAX_LISTING_AGE_S:
                self._listings[folder] = now_s, {}
                with suppress(OSError):
                    self._listings[folder] = now_s, _map_files(folder)[0]
            files = self._listings[folder][1].get(stream, [])
            return files[0] if len(files) == 1 else None


FOLDER_INDEX = FolderIndex()
