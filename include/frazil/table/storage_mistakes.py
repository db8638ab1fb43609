"""Translates errors of an object store into one sentence each, whichever client raised them.

Arrow reads and writes data files; its errors only have a text. All other objects are accessed through fsspec, whose
errors include S3's response. After an outage or expired credentials, the resulting error lets a stream restart.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

from pyiceberg.exceptions import AuthorizationExpiredError

from frazil.errors import AccessDenied, CommitUnavailable, FrazilError, StorageUnavailable
from frazil.spec.addresses import OBJECT_STORES, names_store

MAX_ERROR_CHARACTERS = 600
"""Maximum number of characters that a message quotes from an error. Arrow's text begins with a long key."""
_DENIED = ("ACCESS_DENIED", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_OVERLOADED = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling", "503"})
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers that mean that a disk of this host is full."""
_OUTAGES = frozenset({429, 500, 502, 503, 504})


def translate_client_failure(path: str, error: Exception) -> FrazilError | None:
    """Translate an error of fsspec's client; None if it only concerns one object, such as a missing object."""
    if meant := _translate_credentials_error(path, error):
        return meant
    boto = sys.modules.get("botocore.exceptions")
    if boto is not None and isinstance(error, boto.ConnectionError | boto.HTTPClientError):
        return StorageUnavailable(f"{path}: the object store cannot be reached: {_error_text(error)}")
    return StorageUnavailable(f"{path}: the object store fails: {_error_text(error)}") if _is_outage(error) else None


def translate_staging_failure(folder: str, error: OSError) -> FrazilError | None:
    """Translate an error of Arrow or fsspec while a task staged files; None for other errors of a local disk."""
    if urlsplit(folder).scheme not in OBJECT_STORES:
        if error.errno not in FULL_DISK | {errno.EROFS}:
            return None
        what, remedy = ("is full", "Free space on it") if error.errno in FULL_DISK else ("is read-only", "Remount it")
        return StorageUnavailable(
            f"the disk of {error.filename or folder} {what}: {_error_text(error)}. {remedy}; the writer is then "
            "restarted, and loses nothing"
        )
    if error.errno in FULL_DISK:
        return None
    # A record is never the cause, and a retry may succeed.
    outage = StorageUnavailable(f"{folder}: the object store fails: {_error_text(error)}")
    return _translate_credentials_error(folder, error) or outage


def _translate_credentials_error(path: str, error: Exception) -> FrazilError | None:
    boto = sys.modules.get("botocore.exceptions")
    if boto is not None and isinstance(error, boto.NoCredentialsError):
        # The error is the same if the host's metadata service does not respond.
        return StorageUnavailable(
            f"{path}: credentials for the object store are missing: {_error_text(error)}. Configure credentials, "
            "unless those of the host or role are only temporarily unavailable"
        )
    if has_expired(error):
        return StorageUnavailable(
            f"{path}: the credentials of the object store have expired: {_error_text(error)}. The catalog issues new "
            "credentials when the table is next loaded"
        )
    half = boto is not None and isinstance(error, boto.PartialCredentialsError)
    if half or isinstance(error, PermissionError) or (names_store(error) and any(s in str(error) for s in _DENIED)):
        return AccessDenied(f"{path}: the object store refuses frazil's credentials: {_error_text(error)}")
    return None


def _is_outage(error: Exception) -> bool:
    answer = getattr(error.__cause__, "response", None)  # from botocore's ClientError, which s3fs translates
    if not isinstance(answer, dict):
        return isinstance(error, ConnectionError | TimeoutError)
    code = answer.get("Error", {}).get("Code")
    return code in _OVERLOADED or answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in _OUTAGES


def is_storage_failure(error: Exception) -> bool:
    """Return whether the error of a commit comes from the storage, and not from the catalog."""
    is_local = isinstance(error, OSError) and error.errno is not None
    return names_store(error) or (is_local and not isinstance(error, ConnectionError | TimeoutError))


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]


_CODES = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired")
"""Error codes of S3 and STS for expired credentials. The first also matches `ExpiredTokenException`."""


def has_expired(error: BaseException) -> bool:
    """Return whether an error or one of its causes means that credentials have expired."""
    return any(isinstance(each, AuthorizationExpiredError) or _has_expiry_code(each) for each in _causes(error))


def _has_expiry_code(error: BaseException) -> bool:
    response = getattr(error, "response", None)  # botocore's ClientError has a mapping; requests' errors have none
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    # PyArrow's errors, and an executor's error, which arrives as a frazil error, only have the text.
    text = f"{code} {error}" if isinstance(error, OSError | CommitUnavailable) else str(code)
    return any(each in text for each in _CODES)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
