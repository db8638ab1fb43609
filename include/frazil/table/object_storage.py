"""Stores objects in S3, GCS or ADLS through fsspec, opened with the properties of a PyIceberg FileIO."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]
from pyiceberg.io.fsspec import FsspecFileIO

import frazil.pyiceberg_fixes  # noqa: F401 - configures gcsfs
from frazil.clock import epoch_ms
from frazil.errors import AccessDenied, CommitUnavailable, FrazilError
from frazil.table.object_store import FileInfo, IoProperties, ObjectStore, count_request, file_io_properties
from frazil.table.storage_errors import is_credentials_expiry, translate_client_failure

R = TypeVar("R")

_EXISTS_CODES = frozenset({"PreconditionFailed", "412"})
"""S3's error codes for a conditional put of an existing object."""
_CONFLICT_CODE = "ConditionalRequestConflict"
"""S3's error code for a put that conflicts with a concurrent put. The put is retried."""
_ABSENT_CODES = frozenset({"NoSuchKey", "404"})
_NO_BATCH_DELETE_CODES = frozenset({"NotImplemented", "MethodNotAllowed", "MissingContentMD5", "InvalidRequest"})
"""Error codes of S3-compatible stores without batch deletion."""
MAX_KEYS_PER_REQUEST = 1_000
"""S3's maximum number of objects per delete request."""
_MAX_PUT_ATTEMPTS = 5
MAX_S3FS_ATTEMPTS = 2
"""Maximum number of attempts by s3fs. For each attempt, its client tries up to five times."""
MAX_CACHED_FILE_IOS = 4
"""Maximum number of cached FileIOs, by properties."""


class FsspecStore(ObjectStore):
    """An object store in S3, GCS or ADLS. Objects are written completely or not at all."""

    def __init__(
        self, location: str, io_properties: IoProperties, *, renew: Callable[[], object] | None = None
    ) -> None:
        parts = urlsplit(location)
        self._scheme, self._host = parts.scheme, parts.hostname
        self._get_properties: Callable[[], Mapping[str, str]] = (
            io_properties if callable(io_properties) else lambda: io_properties
        )
        self._renew = renew
        self._opened: tuple[frozenset[tuple[str, str]], FsspecFileIO] | None = None
        self._batches = True

    @property
    def _file_system(self) -> Any:
        """The current thread's file system."""
        opened = self._opened
        # Renewable credentials are used until they expire, because a new client takes half a second of CPU.
        if opened is None or (self._renew is None and opened[0] != self._current_properties()):
            self._opened = opened = (newest := self._current_properties(), _file_io(newest))
        files = opened[1].get_fs(self._scheme, self._host)
        # fsspec would cache the client forever: 12 MiB for each load of a table with new temporary credentials.
        type(files)._cache.pop(files._fs_token, None)
        if hasattr(files, "retries"):
            files.retries = MAX_S3FS_ATTEMPTS
        return files

    def _current_properties(self) -> frozenset[tuple[str, str]]:
        return frozenset(file_io_properties(self._get_properties()).items())

    def _call(self, path: str, action: Callable[[Any], R]) -> R:
        """Call `action`. If the credentials have expired or are refused, call it again with newer credentials."""
        try:
            with _translate_errors(path):
                return action(self._file_system)
        except (AccessDenied, CommitUnavailable) as error:
            expired = is_credentials_expiry(error)
            outdated = self._opened is not None and self._opened[0] != self._current_properties()
            if self._renew is None or not (expired or (outdated and isinstance(error, AccessDenied))):
                raise
            if expired:
                self._renew()
        self._opened = None
        with _translate_errors(path):
            return action(self._file_system)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        count_request("writes", path)
        return self._call(path, lambda files: _put_if_absent(files, path, data))

    def put(self, path: str, data: bytes) -> None:
        count_request("writes", path)
        self._call(path, lambda files: files.pipe_file(path, data))

    def get(self, path: str) -> bytes | None:
        count_request("reads", path)

        def read(files: Any) -> bytes | None:
            with suppress(FileNotFoundError):
                data: bytes = files.cat_file(path)
                return data
            return None

        return self._call(path, read)

    def list_files(self, folder: str) -> list[FileInfo]:
        listed = self._list(folder, lambda files: files.find(folder, detail=True).items())
        files = self._file_system
        root = files._strip_protocol(folder).rstrip("/")
        return sorted(
            (
                FileInfo(f"{folder.rstrip('/')}{name[len(root) :]}", int(info["size"]), _modified_ms(info))
                for name, info in listed
                if info["type"] == "file"  # some stores keep a marker for a folder
            ),
            key=lambda info: info.path,
        )

    def list_folders(self, folder: str) -> list[str]:
        entries = self._list(folder, lambda files: files.ls(folder, detail=True))
        names = (entry["name"].rstrip("/").rsplit("/", 1)[-1] for entry in entries if entry["type"] == "directory")
        return sorted(f"{folder.rstrip('/')}/{name}" for name in names)

    def _list(self, folder: str, action: Callable[[Any], Iterable[R]]) -> list[R]:
        count_request("writes", folder)

        def list_entries(files: Any) -> list[R]:
            files.invalidate_cache()
            with suppress(FileNotFoundError):
                return [*action(files)]
            return []

        return self._call(folder, list_entries)

    def delete_each(self, paths: Iterable[str]) -> dict[str, OSError | FrazilError]:
        """Delete files. S3 takes up to 1,000 keys per request, unless it refuses. Other stores take one key."""
        failed: dict[str, OSError | FrazilError] = {}
        waiting = iter(dict.fromkeys(paths))
        while batch := list(itertools.islice(waiting, MAX_KEYS_PER_REQUEST)):
            try:
                failed |= self._call(batch[0], lambda _, batch=batch: self._delete_batch(batch))  # type: ignore[misc]
            except (OSError, FrazilError) as error:  # the cause is not a single key, so the rest would fail too
                return failed | dict.fromkeys([*batch, *waiting], error)
        return failed

    def _delete_batch(self, paths: Sequence[str]) -> dict[str, OSError | FrazilError]:
        files, many = self._file_system, len(paths) > 1
        if many and self._batches and hasattr(files, "call_s3"):
            try:
                with _translate_errors(paths[0]):
                    return _delete_objects(files, paths)
            except OSError as error:
                if _error_code(error) not in _NO_BATCH_DELETE_CODES:
                    raise
                self._batches = False
        failed: dict[str, OSError | FrazilError] = {}
        for path in paths:
            try:
                with _translate_errors(path):
                    files.rm_file(path)
            except FileNotFoundError:
                continue
            except (OSError, AccessDenied) as error:
                failed[path] = error
            except CommitUnavailable as error:
                if is_credentials_expiry(error) or not isinstance(error.__cause__, OSError):
                    raise  # the error concerns all keys
                failed[path] = error.__cause__
        return failed

    def sync_files(self, paths: Iterable[str]) -> None:
        """Do nothing: a closed file is durable."""


def _put_if_absent(files: Any, path: str, data: bytes) -> bool:
    for attempt in range(_MAX_PUT_ATTEMPTS):
        try:
            files.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            code = _error_code(error)
            if code in _EXISTS_CODES:
                return False
            if code != _CONFLICT_CODE or attempt == _MAX_PUT_ATTEMPTS - 1:
                raise
        else:
            return True
    raise AssertionError("the loop always returns or raises")


def _delete_objects(files: Any, paths: Sequence[str]) -> dict[str, OSError | FrazilError]:
    """Delete objects with one request per bucket. Returns S3's errors by path."""
    keys = {tuple(files.split_path(path)[:2]): path for path in paths}
    failed: dict[str, OSError | FrazilError] = {}
    for bucket in dict.fromkeys(bucket for bucket, _ in keys):
        objects = [{"Key": key} for key_bucket, key in keys if key_bucket == bucket]
        response = files.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        for found in response.get("Errors", ()):
            path, code = keys[bucket, found["Key"]], found.get("Code")
            if code in _ABSENT_CODES:
                continue
            text = f"{path}: {code}: {found.get('Message')}"
            failed[path] = OSError(text)
            if code == "AccessDenied":
                failed[path] = AccessDenied(f"{text}; grant these credentials permission to delete objects")
    return failed


@lru_cache(maxsize=MAX_CACHED_FILE_IOS)
def _file_io(properties: frozenset[tuple[str, str]]) -> FsspecFileIO:
    return FsspecFileIO(dict(properties))


def _error_code(error: OSError) -> str | None:
    cause = error.__cause__
    if not isinstance(cause, ClientError):
        return None
    code: str | None = cause.response.get("Error", {}).get("Code")
    return code


def _modified_ms(info: Mapping[str, Any]) -> int:
    """Return the modification time (ms) from the listing of any fsspec file system."""
    for key in ("LastModified", "mtime", "last_modified", "updated"):
        modified = info.get(key)
        if isinstance(modified, str):
            modified = datetime.fromisoformat(modified)
        if isinstance(modified, datetime):
            return epoch_ms(modified)
    raise KeyError(f"no modification time in {sorted(info)}")


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    """Translate an object store's outages and denials of access into FrazilErrors."""
    try:
        yield
    except (OSError, BotoCoreError) as error:
        translated = translate_client_failure(path, error)
        if translated is None:
            raise
        raise translated from error
