"""Opens the object store of a location, and implements stores in folders.

Stores in object storage have their own module, which loads the clients of object stores.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from frazil.errors import EnvironmentUnusable, FrazilError, SpecError
from frazil.spec.addresses import OBJECT_STORES
from frazil.table.object_store import FileInfo, IoProperties, ObjectStore
from frazil.table.storage_errors import translate_local_failures

_TEMPORARY_SUFFIX = ".frazil-tmp"
_NO_HARD_LINK_ERRORS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_MAX_CREATE_ATTEMPTS = 5


class LocalStore(ObjectStore):
    """An object store in a local folder. A write syncs the file's content, then its name."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        target = _to_local_path(path)
        with translate_local_failures(path), _temporary_file(target, data) as temporary:
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
        with translate_local_failures(path), _temporary_file(target, data) as temporary:
            temporary.replace(target)
            _sync(target.parent)

    def get(self, path: str) -> bytes | None:
        with translate_local_failures(path):
            try:
                return _to_local_path(path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list_files(self, folder: str) -> list[FileInfo]:
        with translate_local_failures(folder):
            files = list(_list_files(_to_local_path(folder), folder.rstrip("/")))
        return sorted(files, key=lambda info: info.path)

    def list_folders(self, folder: str) -> list[str]:
        root = _to_local_path(folder)
        with translate_local_failures(folder):
            try:
                names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                return []
            return [f"{folder.rstrip('/')}/{name}" for name in names if any(_list_files(root / name, ""))]

    def delete_each(self, paths: Iterable[str]) -> dict[str, OSError | FrazilError]:
        """Delete files, and folders that become empty. A process that creates a file in a deleted folder retries."""
        failed: dict[str, OSError | FrazilError] = {}
        for path in paths:
            target = _to_local_path(path)
            try:
                with translate_local_failures(path):
                    target.unlink(missing_ok=True)
            except (OSError, FrazilError) as error:
                failed[path] = error
                continue
            with contextlib.suppress(OSError):  # not empty, or already deleted
                target.parent.rmdir()
        return failed

    def sync_files(self, paths: Iterable[str]) -> None:
        files = [_to_local_path(path) for path in paths]
        for path in (*files, *sorted({file.parent for file in files})):
            with translate_local_failures(str(path)):
                _sync(path)


def _to_local_path(path: str) -> Path:
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return Path(path)


def _list_files(root: Path | str, name: str) -> Iterator[FileInfo]:
    """Yield all files below a folder. Their paths begin with `name` instead of `root`."""
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
    """Create a synced temporary file. Delete it at the end, unless it was renamed."""
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
    """Create a file, and return its descriptor. Retries if another process deletes the empty folder."""
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


def open_store(location: str, io_properties: IoProperties, *, renew: Callable[[], object] | None = None) -> ObjectStore:
    """Return a location's store. `renew` replaces expired credentials. Raises SpecError for other schemes."""
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
