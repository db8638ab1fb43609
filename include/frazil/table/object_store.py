"""The storage interface of a table, with the same guarantees on disk and in object stores. Journals and desired states
rely on `put_if_absent`: of several puts to a path exactly one succeeds, and no reader sees an incomplete object.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from frazil.errors import FrazilError

IoProperties = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""The properties of a PyIceberg FileIO, or a function that returns them with new credentials."""

_FILE_IO_PREFIXES = ("s3.", "client.", "gcs.", "adls.", "hdfs.", "hf.", "py-io-impl")
_SIGNER_PREFIXES = ("uri", "token", "auth.manager", "header.")
"""Prefixes of catalog properties that PyIceberg's remote signer needs."""
Kind = Literal["writes", "reads"]
"""`writes` include listings; `reads` are all other requests, except deletions."""

PART_BYTES = 5 * 2**20
"""Size of the parts in which Arrow uploads larger files."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A listed file. `path` begins with the folder's path as given."""

    path: str
    bytes: int
    modified_ms: int


class ObjectStore(ABC):
    """Stores objects by complete location, with or without a scheme; returned paths have the same form. A folder exists
    while it contains files. Every method raises AccessDenied if the storage refuses access.
    """

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a durable object. Returns False if one exists, even if a repeated request of this call wrote it."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write or replace a durable object. A reader sees the old or the new one."""

    @abstractmethod
    def get(self, path: str) -> bytes | None:
        """Return the object's bytes, if it exists."""

    @abstractmethod
    def list_files(self, folder: str) -> list[FileInfo]:
        """Return all files below a folder, at any depth, sorted by path."""

    @abstractmethod
    def list_folders(self, folder: str) -> list[str]:
        """Return the sorted subfolders that contain files. Stores with marker objects return empty subfolders, too."""

    @abstractmethod
    def delete_each(self, paths: Iterable[str]) -> dict[str, OSError | FrazilError]:
        """Delete files, existing or not. Returns the errors that `delete` would raise, by path."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete as many of these files as possible. Raises AccessDenied, CommitUnavailable or OSError."""
        failed = self.delete_each(paths)
        if not failed:
            return
        first = next(iter(failed.values()))
        if len(failed) == 1:
            raise first
        message = f"{first}; {len(failed) - 1} more files could not be deleted, including {list(failed)[1]}"
        raise (type(first) if isinstance(first, FrazilError) else OSError)(message) from first

    @abstractmethod
    def sync_files(self, paths: Iterable[str]) -> None:
        """Make closed files of another process durable. Raises FileNotFoundError."""


def file_io_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that open a table's files, without a REST catalog's credentials and markers."""
    if not properties.get("py-io-impl", "pyiceberg.").startswith("pyiceberg."):
        return {key: value for key, value in properties.items() if not key.startswith("frazil.")}
    needed = (*_FILE_IO_PREFIXES, *(_SIGNER_PREFIXES if "s3.signer" in properties else ()))
    return {key: value for key, value in properties.items() if key.startswith(needed)}


class StorageRequests(NamedTuple):
    writes: int = 0
    reads: int = 0


_lock = threading.Lock()
_counts: dict[Kind, int] = {"writes": 0, "reads": 0}


def count_request(kind: Kind, path: str) -> None:
    if is_remote(path):
        with _lock:
            _counts[kind] += 1


def counted_requests() -> StorageRequests:
    with _lock:
        return StorageRequests(_counts["writes"], _counts["reads"])


def upload_requests(path: str, size_bytes: int) -> int:
    """Return the number of requests that a data file's upload takes."""
    if not is_remote(path):
        return 0
    return 1 if size_bytes <= PART_BYTES else 2 + -(-size_bytes // PART_BYTES)


def is_remote(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme != "file"
