"""Reads YAML by version 1.2: `on`, `no` and times are strings. A duplicate key is an error."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml

from frazil.errors import SpecError

MAX_FILE_BYTES = 4 * 2**20

MAX_NESTING = 50
"""Maximum nesting depth: PyYAML's C code is recursive, so deeper nesting could crash the process."""

MAX_REPEATED_NODES = 100_000
"""Maximum number of values that aliases repeat: nested aliases in a few lines could repeat exponentially many."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StreamLoader(_Loader):  # type: ignore[misc]
    """A YAML loader without YAML 1.1's booleans, timestamps, octal and sexagesimal numbers. Keys are unique strings."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be text, not a list or mapping", key.start_mark
                )
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} appears twice", key.start_mark
                )
            key.tag = "tag:yaml.org,2002:str"  # `true: string` is a column of this name
            keys.add(str(key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


_BOOL, _INT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:int"
_StreamLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_BOOL, _INT, "tag:yaml.org,2002:timestamp"}]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_StreamLoader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_StreamLoader.add_implicit_resolver(
    _INT, re.compile(r"^(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)


def read_mapping(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a file. It is shared and must not be changed. Raises SpecError."""
    return _FILES.get(path)


def _load_mapping(path: Path) -> Mapping[str, Any]:
    text = _read_text(path)
    try:
        _check_size(text)
        loaded = yaml.load(text, Loader=_StreamLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = error.problem or "is not YAML"
        raise SpecError(f"{path}: {where}{problem}{_suggest_fix(error, text.splitlines())}") from None
    except yaml.reader.ReaderError as error:
        line = text.partition(chr(error.character))[0].count("\n") + 1  # `position` counts bytes, or characters
        raise SpecError(
            f"{path}: line {line}: contains the control character {error.character:#04x}; remove it"
        ) from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # PyYAML's constructors raise these
        raise SpecError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    if loaded is None:
        if path.name.startswith("_"):  # what all streams of the folder share may be nothing
            return {}
        raise SpecError(
            f"{path}: declares nothing. Write a stream into it, or delete it. A failed `frazil infer … > FILE` leaves "
            "an empty file"
        )
    if not isinstance(loaded, dict):
        raise SpecError(f"{path}: is not a mapping; write keys with their values, such as source: …")
    return loaded


def _read_text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise SpecError(
                f"{path}: has {size:,} bytes, but a declaration has at most {MAX_FILE_BYTES:,}; is this the right file?"
            )
        content = path.read_bytes()
        return content.decode()
    except FileNotFoundError:
        raise SpecError(f"{path}: the file does not exist") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SpecError(f"{path}: line {line}: is not UTF-8 text ({error.reason}); save the file as UTF-8") from None
    except OSError as error:  # as the cause, so that `FileCache` does not keep it
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from error


def _check_size(text: str) -> None:
    """Check the nesting depth, and the number of nodes that aliases repeat. Raises yaml.YAMLError."""
    repeated = 0
    anchored: dict[str | None, int] = {}
    sizes: list[int] = [0]  # of the collections that are open
    anchors: list[str | None] = []
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            anchors.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size = sizes.pop()
            sizes[-1] += size
            anchored[anchors.pop()] = size
        elif isinstance(event, yaml.ScalarEvent):
            sizes[-1] += 1
            anchored[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in anchors:
                raise yaml.YAMLError(f"its aliases include a value that contains itself: *{event.anchor}")
            sizes[-1] += anchored.get(event.anchor, 1)
            repeated += anchored.get(event.anchor, 1)
        if len(sizes) > MAX_NESTING + 1:
            raise yaml.YAMLError(f"it is nested more than {MAX_NESTING} levels deep")
        if repeated > MAX_REPEATED_NODES:
            raise yaml.YAMLError(f"its aliases repeat more than {MAX_REPEATED_NODES:,} values; write fewer aliases")


def _suggest_fix(error: yaml.MarkedYAMLError, lines: Sequence[str]) -> str:
    problem, mark, began = error.problem or "", error.problem_mark or error.context_mark, error.context_mark
    number = mark.line if mark else 0
    previous_line, line = ["", *lines, ""][number : number + 2]
    opened = f"line {began.line + 1}" if began else "a line above"
    if strange := _BLANKS.search(f"{previous_line} {line}"):
        return f"; in this line or the one above, replace the character U+{ord(strange[0]):04X} with a plain space"
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in problem:
        return "; indent with spaces, because YAML does not allow tabs"
    if re.search(r"\b(struct|list|map)\s*<", line):
        return '; quote the type, because it contains ": " or ",": "list<struct<a: int>>"'
    if "mapping values are not allowed" in problem and re.fullmatch(r"\s*[\w-]+:[^\s/]\S*\s*", previous_line):
        return "; put a space after the colon in the line above"
    return next((f"; {hint.format(opened=opened)}" for part, hint in _HINTS.items() if part in problem), "")


_BLANKS = re.compile("[\u00a0\u2000-\u200b\u3000]")
_HINTS = {
    "cannot start any token": "quote a value that begins with such a character",
    "mapping values are not allowed": 'quote a value that contains ": ", or begin a new line before the second key',
    "alphabetic or numeric": "quote a value that begins with * or &",
    "undefined alias": "quote a value that begins with *",
    "constructor for the tag": "quote a value that begins with !",
    "another document": "declare one stream per file, and remove the ---",
    "did not find expected key": "indent it like its neighbouring keys, which begin in {opened}",
    "did not find expected ','": "close the bracket that begins in {opened}, and quote a value that contains a bracket",
    "unexpected end of stream": "close the quote that begins in {opened}",
    "could not find expected ':'": "end a key with a colon and a space",
}


T = TypeVar("T")

MIN_UNCHANGED_AGE_NS = 3_000_000_000
"""Minimum age of a file's last change for caching its content.

Two changes in one tick of a file system's clock have the same signature. The longest ticks are 2 s (FAT, some NFS).
"""
MAX_CACHED_FILES = 10_000
Signature = tuple[int, int, int, int] | None
"""Change time, modification time, size and inode; None if the file is missing or inaccessible."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    signatures: tuple[Signature, ...]
    value: T | None
    problem: str | None


class FileCache(Generic[T]):
    """A cache of results and SpecErrors, except errors that an OSError caused, because these may be temporary."""

    def __init__(self, read: Callable[[Path], T], *, other_files: tuple[str, ...] = ()) -> None:
        """`other_files` are names of files in the folder that the reader also reads, if they exist."""
        self._read, self._other_files = read, other_files
        self._entries: dict[Path, _Entry[T]] = {}

    def get(self, path: Path) -> T:
        """Return the reader's result, or raise its exception. The value is shared and must not be changed."""
        files = (path, *(path.parent / name for name in self._other_files))
        now_ns, signatures = time.time_ns(), tuple(map(read_signature, files))
        entry = self._entries.get(path)
        if entry is None or entry.signatures != signatures:
            entry = self._read_entry(path, signatures)
            # A file that has just changed may change again with the same signature, so it is read until it has settled.
            if all(stat is None or stat[0] < now_ns - MIN_UNCHANGED_AGE_NS for stat in signatures):
                if len(self._entries) >= MAX_CACHED_FILES:
                    self._entries.clear()
                self._entries[path] = entry
        if entry.problem is not None:
            raise SpecError(entry.problem)
        return entry.value  # type: ignore[return-value]  # set if there is no problem

    def _read_entry(self, path: Path, signatures: tuple[Signature, ...]) -> _Entry[T]:
        try:
            return _Entry(signatures, self._read(path), None)
        except SpecError as error:
            if isinstance(error.__cause__, OSError):
                raise
            return _Entry(signatures, None, str(error))


def read_signature(path: Path) -> Signature:
    """Return a file's signature. Includes the ctime, because programs cannot set it, unlike the mtime."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ctime_ns, status.st_mtime_ns, status.st_size, status.st_ino


_FILES = FileCache(_load_mapping)
