"""The object store of a location: the interface, and its implementation for folders. Object storage has its own module,
which loads its clients.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from frazil.errors import AccessDenied, EnvironmentUnusable, FrazilError, SpecError
from frazil.spec.addresses import OBJECT_STORES
from frazil.table.storage_mistakes import FULL_DISK_ERRORS

IoProperties = Mapping[str, str] | Callable[[], Mapping[str, str]]
"""The properties of a PyIceberg FileIO, or a function that returns them with new credentials."""

_FILE_IO_PREFIXES = ("s3.", "client.", "gcs.", "adls.", "hdfs.", "hf.", "py-io-impl")
_SIGNER_PREFIXES = ("uri", "token", "auth.manager", "header.")
"""Prefixes of catalog properties that PyIceberg's remote signer needs."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A listed file. `path` begins with the folder's path as it was passed."""

    path: str
    bytes: int
    modified_ms: int


class ObjectStore(ABC):
    """Stores objects by complete location, with or without a scheme; returned paths have the same form. A folder exists
    while it contains files. Every method raises AccessDenied if the storage refuses access.
    """

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write a durable object if none exists. Returns False if one exists, perhaps written by a repeated request."""

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
        """Return the sorted subfolders that contain files; a store with marker objects also returns empty ones."""

    @abstractmethod
    def delete_each(self, paths: Iterable[str]) -> dict[str, OSError | FrazilError]:
        """Delete files, existing or not. Returns, by path, the error that `delete` would raise."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete as many of these files as possible. Raises AccessDenied, CommitUnavailable or OSError."""
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
        """Make files durable that another process wrote and closed. Raises FileNotFoundError."""


def file_io_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a table's properties that open its files, without a REST catalog's own credentials and markers."""
    if not properties.get("py-io-impl", "pyiceberg.").startswith("pyiceberg."):
        return {key: value for key, value in properties.items() if not key.startswith("frazil.")}
    needed = (*_FILE_IO_PREFIXES, *(_SIGNER_PREFIXES if "s3.signer" in properties else ()))
    return {key: value for key, value in properties.items() if key.startswith(needed)}


_TEMPORARY_SUFFIX = ".frazil-tmp"
_NO_HARD_LINK_ERRORS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_MAX_CREATE_ATTEMPTS = 5


class LocalStore(ObjectStore):
    """An object store in a folder. A write syncs the file's content, then its name in the folder."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        target = _to_local_path(path)
        with _translate_errors(path), _temporary_file(target, data) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_HARD_LINK_ERRORS:
                    raise
                raise EnvironmentUnusable(
                    f"{target.parent}: this file system does not support hard links ({error.strerror}), which frazil "
                    "needs; put the table on a file system that does, or in an object store"
                ) from error
        _sync(target.parent)
        return True

    def put(self, path: str, data: bytes) -> None:
        target = _to_local_path(path)
        with _translate_errors(path), _temporary_file(target, data) as temporary:
            temporary.replace(target)
        _sync(target.parent)

    def get(self, path: str) -> bytes | None:
        with _translate_errors(path):
            try:
                return _to_local_path(path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list_files(self, folder: str) -> list[FileInfo]:
        with _translate_errors(folder):
            found = list(_list_files(_to_local_path(folder), folder.rstrip("/")))
        return sorted(found, key=lambda info: info.path)

    def list_folders(self, folder: str) -> list[str]:
        root = _to_local_path(folder)
        with _translate_errors(folder):
            try:
                names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                return []
            return [f"{folder.rstrip('/')}/{name}" for name in names if any(True for _ in _walk(root / name))]

    def delete_each(self, paths: Iterable[str]) -> dict[str, OSError | FrazilError]:
        """Delete files, and folders that become empty. Returns the errors by path of the files that were not deleted.

        A process that creates a file in a deleted folder retries.
        """
        left: dict[str, OSError | FrazilError] = {}
        for path in paths:
            target = _to_local_path(path)
            try:
                with _translate_errors(path):
                    target.unlink(missing_ok=True)
            except (OSError, FrazilError) as error:
                left[path] = error
                continue
            with contextlib.suppress(OSError):  # not empty, or already deleted
                target.parent.rmdir()
        return left

    def sync_files(self, paths: Iterable[str]) -> None:
        files = [_to_local_path(path) for path in paths]
        for path in (*files, *sorted({file.parent for file in files})):
            _sync(path)


def _to_local_path(path: str) -> Path:
    """Return the path of `file:///a/b`, `file:/a/b` or `/a/b`."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return Path(path)


def _walk(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in names:
            if not name.endswith(_TEMPORARY_SUFFIX):
                yield Path(folder, name)


def _list_files(root: Path | str, name: str) -> Iterator[FileInfo]:
    """Yield all files below a folder, with paths that begin with `name` instead of `root`."""
    try:
        entries = list(os.scandir(root))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _list_files(entry.path, f"{name}/{entry.name}")
        elif not entry.name.endswith(_TEMPORARY_SUFFIX) and not entry.is_dir():
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # deleted since the listing
            yield FileInfo(f"{name}/{entry.name}", status.st_size, status.st_mtime_ns // 1_000_000)


@contextmanager
def _temporary_file(target: Path, data: bytes) -> Iterator[Path]:
    """Create a synced temporary file, and delete it at the end, unless it was renamed."""
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}{_TEMPORARY_SUFFIX}"
    descriptor = _create(temporary)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _create(path: Path) -> int:
    """Create a file. Retries if another process deletes the empty folder. Returns the file's descriptor."""
    for _ in range(_MAX_CREATE_ATTEMPTS):
        _make_folder(path.parent)
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileNotFoundError:
            continue
    raise FileNotFoundError(errno.ENOENT, "the folder was deleted while a file was created in it", str(path))


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, and sync each new name."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o775, exist_ok=True)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    """Convert PermissionError to AccessDenied, and add the path to errors about a full disk."""
    try:
        yield
    except PermissionError as error:
        raise AccessDenied(f"{path}: the file system refuses access ({error}); grant this user access") from error
    except OSError as error:
        if error.errno not in FULL_DISK_ERRORS:
            raise
        raise OSError(error.errno, error.strerror, path) from error  # writing a file names no file


def open_store(location: str, io_properties: IoProperties, *, renew: Callable[[], object] | None = None) -> ObjectStore:
    """Return the store for a location. It calls `renew` for expired credentials. Raises SpecError for other schemes."""
    scheme = urlsplit(location).scheme
    if scheme in {"", "file"}:
        return LocalStore()
    if scheme in OBJECT_STORES:
        from frazil.table.object_storage import FsspecStore  # loads botocore and fsspec

        return FsspecStore(location, io_properties, renew=renew)
    raise SpecError(
        f"{location}: the scheme {scheme!r} is not supported; a table's location must be a folder, file://, "
        f"or one of {', '.join(sorted(OBJECT_STORES))}"
    )
