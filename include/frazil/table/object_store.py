"""What frazil needs of the storage beneath a table, with the same guarantees on a disk and in S3.

Journals and desired state are objects beside the table's data. They rely on `put_if_absent`: of any number of
processes that put one path, exactly one succeeds, and no reader ever sees half an object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from frazil.errors import FrazilError

IoProperties = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""A PyIceberg FileIO's properties, or where they are asked for: a catalog that vends credentials renews them with
every load of the table, and a store that lives longer than they do asks each time."""

_FILE_IO_KEYS = ("s3.", "client.", "gcs.", "adls.", "hdfs.", "hf.", "py-io-impl")
_SIGNER_KEYS = ("uri", "token", "auth.manager", "header.")
"""What PyIceberg's remote signer needs of the catalog's properties."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file; `path` has the form of the folder that was listed; `modified_ms` is since 1970, UTC."""

    path: str
    bytes: int
    modified_ms: int


class ObjectStore(ABC):
    """Paths are whole locations, with or without their scheme, and come back in the form they were given.

    A folder exists only through the files in it. Every method raises AccessDenied where the storage refuses us.
    """

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write an object whole and durably, unless the path has one already: then False, and nothing changes.

        Where an answer is lost and the client asks again, False may mean that our own first try arrived: a caller
        to whom the difference matters reads the object and compares.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write an object whole and durably, in place of what the path has: a reader sees the old or the new."""

    @abstractmethod
    def get(self, path: str) -> bytes | None:
        """The object's bytes; None where there is none."""

    @abstractmethod
    def list_files(self, folder: str) -> list[FileInfo]:
        """Every file under a folder, at any depth, sorted by path; empty where there is none."""

    @abstractmethod
    def list_folders(self, folder: str) -> list[str]:
        """The folders right in a folder, those with a file at some depth, sorted, without a trailing slash.

        A store that keeps markers of folders (SeaweedFS) may name an emptied one as well.
        """

    @abstractmethod
    def delete_each(self, paths: Iterable[str]) -> dict[str, OSError | FrazilError]:
        """Delete files, many in one request where the storage can. Answers with those that it could not delete.

        A missing file is as good as deleted. The errors are of the kinds that `delete` raises.
        """

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, as many as can be; a missing file is as good as deleted.

        Raises for what is left: AccessDenied, CommitUnavailable where the storage cannot be reached, else OSError.
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
        """Make files that another process has written, and closed, durable; raises FileNotFoundError."""


def file_io_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Those of a loaded table's FileIO properties that are needed to open files.

    From a REST catalog they include the table's own properties, with the streams' markers, and the catalog's
    credentials.
    A FileIO of somebody's own (`py-io-impl`) may read any key: only the markers are kept from it.
    """
    if not properties.get("py-io-impl", "pyiceberg.").startswith("pyiceberg."):
        return {key: value for key, value in properties.items() if not key.startswith("frazil.")}
    needed = (*_FILE_IO_KEYS, *(_SIGNER_KEYS if "s3.signer" in properties else ()))
    return {key: value for key, value in properties.items() if key.startswith(needed)}
