"""The last sound declarations of a folder, so that a typo takes nothing away that stands on them.

<home>/declared/<folder>-<hash>/<file>.json    what a file declared when it was sound last

Whoever reads a folder remembers what is sound in it, and finds there what a broken file said before. Any process may
do so at once: a record is replaced whole, and only where it changed. A file that is gone is another matter than one
that is broken: it is believed in for a moment, since files are replaced and mounts come late, and forgotten then. So
is a name that a file has given up for another: `<file>~<name>.json`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from frazil.errors import SpecError
from frazil.home import home
from frazil.spec.file_cache import Signature, signature
from frazil.spec.load import find_stream, load_stream, read_stream, sound_streams, stream_files, validate_stream
from frazil.spec.model import StreamSpec

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MOMENT_MS = 60_000
"""A single file may be gone for so long."""
EMPTY_MS = 600_000
"""And all of a folder's: an unmounted volume looks like that."""
ENDING_MS = 900_000
"""For so long after that it is known that a file was removed: its DAG ends what still runs."""


class Declared(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Declared)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What a folder's files declare."""

    load: Callable[[Path], T]
    """What a file means. Raises SpecError."""
    read: Callable[[Path], Mapping[str, Any]]
    """What it says, as JSON values. Raises SpecError."""
    validate: Callable[[Mapping[str, Any], Path], T]
    """And what that means. Raises SpecError."""


STREAMS: Kind[StreamSpec] = Kind(load_stream, read_stream, validate_stream)
_kept: dict[Path, tuple[Declared, Signature]] = {}
"""By record, what this process knows to be kept there as long as the record stays the same: a folder is looked at every
few seconds."""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """One file of a folder, or one that was there."""

    path: Path
    spec: T | None
    """As it is, or as it was when it was sound last; None where it never was."""
    problem: str | None = None
    """Why `spec` is not what the file says now."""
    removed: bool = False
    """The file is gone, and not for a moment."""
    missing: bool = False
    """The file is gone, perhaps for a moment, and others of its folder are there: somebody removes or replaces it."""


def find_declared(folder: Path, kind: Kind[T], *, now_ms: int) -> list[Found[T]]:
    """Every file of a folder, by path, sound or not; and those that are gone, as long as they are remembered."""
    memory = Memory(folder)
    problem, paths = _listed(folder)
    found = [_read(path, kind, memory) for path in paths]
    known = {one.spec.name for one in found if one.spec}
    for path in memory.paths():
        if path in paths:
            continue
        spec = memory.recall(path, kind)
        if spec is None or spec.name in known:  # of another version; or renamed
            memory.forget(path)
        elif problem:
            found.append(Found(path, spec, problem))
        else:
            found += _gone(path, spec, memory, now_ms=now_ms, moment_ms=MOMENT_MS if paths else EMPTY_MS)
    return sorted(found, key=lambda one: one.path)


def _read(path: Path, kind: Kind[T], memory: Memory) -> Found[T]:
    try:
        spec = kind.load(path)
        memory.remember(path, spec, kind)
    except SpecError as error:
        return Found(path, memory.recall(path, kind), str(error))
    return Found(path, spec)


def _gone(path: Path, spec: T, memory: Memory, *, now_ms: int, moment_ms: int) -> Iterator[Found[T]]:
    since_ms = memory.missing_since(path, now_ms=now_ms)
    if now_ms - since_ms >= moment_ms + ENDING_MS:
        memory.forget(path)
        return
    removed = now_ms - since_ms >= moment_ms
    said = "was removed" if removed else f"is gone; it is taken for removed after {moment_ms // 1000} s"
    file = str(path).removesuffix(f"~{spec.name}")
    yield Found(path, spec, f"{file}: {spec.name} {said}", removed, not removed and moment_ms == MOMENT_MS)


def recall(folder: Path, name: str, kind: Kind[T]) -> T | None:
    """The last sound declaration of that name in a folder."""
    memory = Memory(folder)
    specs = (memory.recall(path, kind) for path in memory.paths())
    return next((spec for spec in specs if spec is not None and spec.name == name), None)


def find_or_recall(folder: Path, name: str) -> tuple[StreamSpec, str | None]:
    """One stream of a folder; where its file is broken as it was when it was sound last, and what is wrong with it.

    Raises SpecError where it never was sound.
    """
    try:
        return find_stream(folder, name), None
    except SpecError as error:
        if (last := recall(folder, name, STREAMS)) is None:
            raise
        return last, str(error)


def declared_streams(folder: Path, *, now_ms: int) -> tuple[list[StreamSpec], list[str]]:
    """All streams of a folder by name, those with a broken file as above, and what is wrong with files.

    Raises SpecError where there is neither.
    """
    found = [one for one in find_declared(folder, STREAMS, now_ms=now_ms) if not one.removed]
    if not found:
        return sound_streams(folder)
    specs = sorted((one.spec for one in found if one.spec), key=lambda spec: spec.name)
    return specs, [one.problem for one in found if one.problem]


def _listed(folder: Path) -> tuple[str | None, list[Path]]:
    """Why a folder's files cannot be listed, and the files."""
    try:
        os.listdir(folder)  # noqa: PTH208 - glob() answers with nothing for a folder that cannot be read
        return None, [path.absolute() for path in stream_files(folder)]
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}", []


def _is_record(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


class Memory:
    """The records of one folder's files. What cannot be written or read counts as not remembered, with a warning."""

    def __init__(self, folder: Path) -> None:
        path = str(folder.absolute())
        name = re.sub(r"[^\w-]", "-", folder.name)
        self._folder = folder.absolute()
        self._records = home() / "declared" / f"{name}-{hashlib.sha256(path.encode()).hexdigest()[:12]}"

    def paths(self) -> list[Path]:
        """The files that are remembered."""
        try:
            records = os.listdir(self._records)  # noqa: PTH208 - Path.glob() raises for a home that is closed to us
        except FileNotFoundError:
            records = []
        except OSError as error:
            log.warning("the last sound declarations of %s cannot be read: %s", self._folder, error)
            records = []
        return sorted(self._folder / name.removesuffix(".json") for name in records if _is_record(name))

    def remember(self, path: Path, spec: T, kind: Kind[T]) -> None:
        """Raises SpecError where the file changed since, and is broken."""
        target = self._record(path)
        seen = signature(target)
        if seen is not None and _kept.get(target) == (spec, seen):
            return
        said = kind.read(path)
        kind.validate(said, path)
        record = {"format": FORMAT_VERSION, "declared": said}
        before = self._read(path)
        if before != record:
            last = self.recall(path, kind)
            if last is not None and last.name != spec.name:
                renamed = path.with_name(f"{path.name}~{last.name}")
                self._write(renamed, {"format": FORMAT_VERSION, "declared": before["declared"]})
            self._write(path, record)
        _kept[target] = spec, signature(target)

    def recall(self, path: Path, kind: Kind[T]) -> T | None:
        try:
            return kind.validate(self._read(path)["declared"], path)
        except (SpecError, KeyError):  # none, or another version's
            return None

    def missing_since(self, path: Path, *, now_ms: int) -> int:
        """Since when a file is gone that was remembered: since now, if nobody saw it before."""
        record = self._read(path)
        since_ms = record.get("missing-since-ms")
        if isinstance(since_ms, int) and since_ms <= now_ms:
            return since_ms
        self._write(path, {**record, "missing-since-ms": now_ms})
        return now_ms

    def forget(self, path: Path) -> None:
        try:
            self._record(path).unlink(missing_ok=True)
        except OSError as error:
            log.warning("the last declaration of %s, which is gone, cannot be forgotten: %s", path, error)

    def _record(self, path: Path) -> Path:
        return self._records / f"{path.name}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            record = json.loads(self._record(path).read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("the last sound declaration of %s cannot be read: %s", path, error)
            return {}
        sound = isinstance(record, dict) and record.get("format") == FORMAT_VERSION
        return record if sound and isinstance(record.get("declared"), dict) else {}

    def _write(self, path: Path, record: Mapping[str, Any]) -> None:
        target = self._record(path)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            self._records.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(record))
            temporary.replace(target)
        except (OSError, ValueError, TypeError) as error:
            with suppress(OSError):
                temporary.unlink()
            log.warning("the declaration of %s cannot be kept for the time when it is broken: %s", path, error)
