"""The storage interface of a table, with the same guarantees on disk and in S3.

Journals and desired state are objects next to the table's data. They rely on `put_if_absent`: of any number of
processes that put the same path, exactly one succeeds, and no reader ever sees half an object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from frazil.errors import FrazilError

IoProperties = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""A PyIceberg FileIO's properties, or a function that returns them.

A catalog that vends credentials renews them with every load of the table, so a long-lived store calls the function each
time.
"""

_FILE_IO_KEYS = ("s3.", "client.", "gcs.", "adls.", "hdfs.", "hf.", "py-io-impl")
_SIGNER_KEYS = ("uri", "token", "auth.manager", "header.")
"""Catalog properties that PyIceberg's remote signer needs."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file. `path` begins like the listed folder; `modified_ms` counts from 1970, UTC."""

    path: str
    bytes: int
    modified_ms: int


class ObjectStore(ABC):
    """Stores objects by path: complete locations, with or without scheme, returned in the given form.

    A folder exists only through its files. Every method raises AccessDenied if the storage refuses access.
    """

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write an object whole and durably; return False, without a change, if the path already has one.

        If the client repeats a request whose answer was lost, False may mean that the first try succeeded: a caller
        that needs to know reads the object and compares.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write or replace an object whole and durably: a reader sees either the old or the new."""

    @abstractmethod
    def get(self, path: str) -> bytes | None:
        """The object's bytes; None if it does not exist."""

    @abstractmethod
    def list_files(self, folder: str) -> list[FileInfo]:
        """All files below a folder, at any depth, sorted by path."""

    @abstractmethod
    def list_folders(self, folder: str) -> list[str]:
        """The direct subfolders with a file at any depth, sorted, without trailing slash.

        A store with folder markers (SeaweedFS) may include emptied ones.
        """

    @abstractmethod
    def delete_each(self, paths: Iterable[str]) -> dict[str, OSError | FrazilError]:
        """Delete files, many per request if the storage can; return errors by path for the files that remain.

        A missing file counts as deleted. The errors are of the types that `delete` raises.
        """

    def delete(self, paths: Iterable[str]) -> None:
        """Delete as many of these files as possible; a missing file counts as deleted.

        Raises for the rest: AccessDenied, CommitUnavailable if the storage cannot be reached, else OSError.
        """
        left = self.delete_each(paths)
        if not left:
            return
        first = next(iter(left.values()))
        if len(left) == 1:
            raise first
        message = f"{first}; {len(left) - 1} more files could not be deleted, {list(left)[1]} among them"
        raise (type(first) if isinstance(first, FrazilError) else OSError)(message) from first

    @abstractmethod
    def sync_files(self, paths: Iterable[str]) -> None:
        """Make files durable that another process wrote and closed. Raises FileNotFoundError."""


def file_io_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The FileIO properties of a loaded table that are needed to open files.

    From a REST catalog they also include the table's properties with the streams' markers, and the catalog's
    credentials. A custom FileIO (`py-io-impl`) may read any key, so only the markers are removed for it.
    """
    if not properties.get("py-io-impl", "pyiceberg.").startswith("pyiceberg."):
        return {key: value for key, value in properties.items() if not key.startswith("frazil.")}
    needed = (*_FILE_IO_KEYS, *(_SIGNER_KEYS if "s3.signer" in properties else ()))
    return {key: value for key, value in properties.items() if key.startswith(needed)}
