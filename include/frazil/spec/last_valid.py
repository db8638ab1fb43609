"""Records the last valid declarations of a folder, so that a typo does not remove a DAG or stop a writer.

The records are `<home>/declared/<folder>-<hash>/<file>.json`, and `<file>~<name>.json` for a stream's old name. The
record of a missing file is used for a short time. An editor may be replacing the file, or a volume may be mounted late.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from frazil.errors import SpecError
from frazil.home import home
from frazil.json_files import read_json, replace_json
from frazil.spec.load import find_file, list_stream_files, load_stream, load_valid_streams, read_stream, validate_stream
from frazil.spec.model import StreamSpec
from frazil.spec.yaml_file import Signature, read_signature

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MAX_FILE_ABSENCE_MS = 60_000
"""How long a file may be missing before it counts as removed, while the folder has other files."""
MAX_FOLDER_ABSENCE_MS = 600_000
"""How long all files of a folder may be missing: longer, because an unmounted volume also looks empty."""
REMOVED_FILE_REPORT_MS = 900_000
"""How long a removed file is still reported, so that its DAG has time to stop its processes."""


class NamedDeclaration(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=NamedDeclaration)


@dataclass(frozen=True, slots=True)
class FileKind(Generic[T]):
    """The functions that read one kind of declaration. All raise SpecError."""

    load: Callable[[Path], T]
    read: Callable[[Path], Mapping[str, Any]]
    validate: Callable[[Mapping[str, Any], Path], T]
    """Validate the values that `read` returned."""


STREAMS: FileKind[StreamSpec] = FileKind(load_stream, read_stream, validate_stream)
_known_records: dict[Path, tuple[NamedDeclaration, Signature]] = {}
"""Each record file's declaration and signature. While the signature is unchanged, the declaration is current."""


@dataclass(frozen=True, slots=True)
class DeclaredFile(Generic[T]):
    path: Path
    spec: T | None
    """The current declaration if it is valid, otherwise the last valid one; None if it was never valid."""
    problem: str | None = None
    """Why `spec` is not the file's current content; None if it is."""
    removed: bool = False
    missing: bool = False
    """Whether the file has been missing only briefly, while other files of its folder exist."""


def find_declared(folder: Path, kind: FileKind[T], *, now_ms: int) -> list[DeclaredFile[T]]:
    """Return all files by path, also broken and missing ones. Records valid declarations, and forgets removed files."""
    memory = DeclarationMemory(folder)
    problem, paths = _list_files(folder)
    files = [_read_file(path, kind, memory) for path in paths]
    names = {stream.spec.name for stream in files if stream.spec}
    for path in sorted(set(memory.paths()).difference(paths)):
        spec = memory.recall(path, kind)
        if spec is None or spec.name in names:  # from another version, or renamed
            memory.forget(path)
        elif problem:
            files.append(DeclaredFile(path, spec, problem))
        else:
            files += _find_missing(
                path, spec, memory, now_ms=now_ms, moment_ms=MAX_FILE_ABSENCE_MS if paths else MAX_FOLDER_ABSENCE_MS
            )
    return sorted(files, key=lambda stream: stream.path)


def _read_file(path: Path, kind: FileKind[T], memory: DeclarationMemory) -> DeclaredFile[T]:
    try:
        spec = kind.load(path)
        memory.remember(path, spec, kind)
    except SpecError as error:
        return DeclaredFile(path, memory.recall(path, kind), str(error))
    return DeclaredFile(path, spec)


def _find_missing(
    path: Path, spec: T, memory: DeclarationMemory, *, now_ms: int, moment_ms: int
) -> Iterator[DeclaredFile[T]]:
    since_ms = memory.missing_since(path, now_ms=now_ms)
    if now_ms - since_ms >= moment_ms + REMOVED_FILE_REPORT_MS:
        memory.forget(path)
        return
    removed = now_ms - since_ms >= moment_ms
    state = "was removed" if removed else f"is missing; it counts as removed after {moment_ms // 1000} s"
    file = str(path).removesuffix(f"~{spec.name}")
    yield DeclaredFile(
        path, spec, f"{file}: {spec.name} {state}", removed, not removed and moment_ms == MAX_FILE_ABSENCE_MS
    )


def recall_declaration(folder: Path, name: str, kind: FileKind[T]) -> T | None:
    memory = DeclarationMemory(folder)
    specs = (memory.recall(path, kind) for path in memory.paths())
    return next((spec for spec in specs if spec is not None and spec.name == name), None)


def find_or_recall(folder: Path, name: str) -> tuple[StreamSpec, str | None]:
    """Return a stream, or its last valid declaration and the file's problem. Raises SpecError if it was never valid."""
    try:
        return find_and_remember(folder, name), None
    except SpecError as error:
        if (last := recall_declaration(folder, name, STREAMS)) is None:
            raise
        return last, str(error)


def find_and_remember(folder: Path, name: str) -> StreamSpec:
    """Return a stream, and record its declaration. Raises SpecError like `find_stream`."""
    path = find_file(folder, name)
    spec = load_stream(path)
    DeclarationMemory(folder).remember(path, spec, STREAMS)
    return spec


def find_declared_streams(folder: Path, *, now_ms: int) -> tuple[list[StreamSpec], list[str]]:
    """Return the streams, broken ones as last valid, and all problems. Raises SpecError if there are neither."""
    files = [stream for stream in find_declared(folder, STREAMS, now_ms=now_ms) if not stream.removed]
    if not files:
        return load_valid_streams(folder)
    specs = sorted((stream.spec for stream in files if stream.spec), key=lambda spec: spec.name)
    return specs, [stream.problem for stream in files if stream.problem]


def _list_files(folder: Path) -> tuple[str | None, list[Path]]:
    try:
        os.listdir(folder)  # noqa: PTH208 - glob() returns nothing for an unreadable folder
        return None, list_stream_files(folder)
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}", []


class DeclarationMemory:
    """Reads and writes records of declarations. An unusable record is logged, and counts as missing."""

    def __init__(self, folder: Path) -> None:
        path = str(folder.absolute())
        name = re.sub(r"[^\w-]", "-", folder.name)
        self._folder = folder
        self._records = home() / "declared" / f"{name}-{hashlib.sha256(path.encode()).hexdigest()[:12]}"

    def paths(self) -> list[Path]:
        try:
            records = os.listdir(self._records)  # noqa: PTH208 - Path.glob() raises for a home without read permission
        except FileNotFoundError:
            records = []
        except OSError as error:
            log.warning("the last valid declarations of %s cannot be read: %s", self._folder, error)
            records = []
        return sorted(
            self._folder / name.removesuffix(".json")
            for name in records
            if (name.endswith(".json") and not name.startswith("."))
        )

    def remember(self, path: Path, spec: T, kind: FileKind[T]) -> None:
        """Record a valid declaration. Raises SpecError if the file was broken since it was loaded."""
        target = self._record_path(path)
        signature = read_signature(target)
        if signature is not None and _known_records.get(target) == (spec, signature):
            return
        declared = kind.read(path)
        record = {"format": FORMAT_VERSION, "declared": declared}
        stored = self._read(path)
        if stored != record:
            kind.validate(declared, path)
            last = self.recall(path, kind)
            if last is not None and last.name != spec.name:
                renamed = path.with_name(f"{path.name}~{last.name}")
                self._write(renamed, {"format": FORMAT_VERSION, "declared": stored["declared"]})
            self._write(path, record)
        _known_records[target] = spec, read_signature(target)

    def recall(self, path: Path, kind: FileKind[T]) -> T | None:
        """Return the recorded declaration of a file; None if none is recorded, or if it is invalid in this version."""
        try:
            return kind.validate(self._read(path)["declared"], path)
        except (SpecError, KeyError):  # none, or from another version
            return None

    def missing_since(self, path: Path, *, now_ms: int) -> int:
        record = self._read(path)
        since_ms = record.get("missing-since-ms")
        if isinstance(since_ms, int) and since_ms <= now_ms:
            return since_ms
        self._write(path, {**record, "missing-since-ms": now_ms})
        return now_ms

    def forget(self, path: Path) -> None:
        try:
            self._record_path(path).unlink(missing_ok=True)
        except OSError as error:
            log.warning(
                "%s is missing, and the record of its last valid declaration cannot be deleted: %s", path, error
            )

    def _record_path(self, path: Path) -> Path:
        return self._records / f"{path.name}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            record = read_json(self._record_path(path))
        except (OSError, ValueError) as error:
            log.warning("the last valid declaration of %s cannot be read: %s", path, error)
            return {}
        valid = isinstance(record, dict) and record.get("format") == FORMAT_VERSION
        return record if valid and isinstance(record.get("declared"), dict) else {}

    def _write(self, path: Path, record: Mapping[str, Any]) -> None:
        try:
            replace_json(self._record_path(path), record)
        except (OSError, ValueError, TypeError) as error:
            log.warning("the declaration of %s cannot be recorded: %s", path, error)
