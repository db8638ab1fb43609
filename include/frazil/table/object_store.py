"""Defines the storage interface of a table, with the same guarantees on disk and in object stores.

Journals and desired states are stored as objects next to the table's data. They rely on `put_if_absent`: if several
processes put the same path, exactly one succeeds, and no reader ever sees an incomplete object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from frazil.errors import FrazilError

IoProperties = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""The properties of a PyIceberg FileIO, or a function that returns them with new temporary credentials."""

_FILE_IO_PREFIXES = ("s3.", "client.", "gcs.", "adls.", "hdfs.", "hf.", "py-io-impl")
"""Beginnings of the properties with which PyIceberg opens files."""
_SIGNER_PREFIXES = ("uri", "token", "auth.manager", "header.")
"""Prefixes of the catalog properties that PyIceberg's remote signer needs."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A listed file. `path` begins with the folder's path in the form in which it was passed, with or without a
    scheme.
    """

    path: str
    bytes: int
    modified_ms: int


class ObjectStore(ABC):
    """Stores objects by path. A path is a complete location, with or without a scheme; returned paths have the same
    form.

    A folder exists only while it contains files. Every method raises AccessDenied if the storage refuses access.
    """

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a complete, durable object if none exists at the path. Returns False, and changes nothing, if one
        exists.

        False may also mean that this call wrote the object: the client repeats a request whose response was lost. If
        this matters, the caller must read the object and compare.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write or replace a complete, durable object. A reader sees either the old object or the new one."""

    @abstractmethod
    def get(self, path: str) -> bytes | None:
        """Return the object's bytes; None if the object does not exist."""

    @abstractmethod
    def list_files(self, folder: str) -> list[FileInfo]:
        """Return all files below a folder, at any depth, sorted by path."""

    @abstractmethod
    def list_folders(self, folder: str) -> list[str]:
        """Return the direct subfolders that contain files at any depth, sorted, without trailing slashes.

        A store with marker objects for folders (SeaweedFS) may also return empty folders.
        """

    @abstractmethod
    def delete_each(self, paths: Iterable[str]) -> dict[str, OSError | FrazilError]:
        """Delete files. Returns, for each path that could not be deleted, the error that `delete` would raise.

        A missing file counts as deleted.
        """

    def delete(self, paths: Iterable[str]) -> None:
        """Delete as many of these files as possible. A missing file counts as deleted.

        If files remain, raises AccessDenied, CommitUnavailable if the storage cannot be reached, or otherwise OSError.
        """
        left = self.delete_each(paths)
        if not left:
            return
        first = next(iter(left.values()))
        if len(left) == 1:
            raise first
        message = f"{first}; {len(left) - 1} more files could not be deleted, including {list(left)[1]}"
        raise (type(first) if isinstance(first, FrazilError) else OSError)(message) from first

    @abstractmethod
    def sync_files(self, paths: Iterable[str]) -> None:
        """Make files durable that another process wrote and closed. Raises FileNotFoundError if a file is missing."""


def file_io_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return those properties of a loaded table that are needed to open its files.

    A REST catalog also returns the markers of streams, and its own credentials. A custom FileIO (`py-io-impl`) may read
    any key, so for it only the markers are removed.
    """
    if not properties.get("py-io-impl", "pyiceberg.").startswith("pyiceberg."):
        return {key: value for key, value in properties.items() if not key.startswith("frazil.")}
    needed = (*_FILE_IO_PREFIXES, *(_SIGNER_PREFIXES if "s3.signer" in properties else ()))
    return {key: value for key, value in properties.items() if key.startswith(needed)}
