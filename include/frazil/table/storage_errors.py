"""Translates errors of object stores to frazil's errors, with a message of one sentence. Arrow's errors, about data
files, have only text; fsspec's also have S3's response. After an outage or with new credentials, a writer may restart.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from pyiceberg.exceptions import AuthorizationExpiredError

from frazil.errors import AccessDenied, CommitUnavailable, FrazilError, StorageUnavailable
from frazil.spec.addresses import OBJECT_STORES, is_object_store_error

MAX_ERROR_CHARACTERS = 600
"""Maximum number of characters quoted from an error."""
_DENIED_TEXTS = ("ACCESS_DENIED", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")
"""Texts in Arrow's errors for refused credentials."""
_OUTAGE_CODES = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling", "503"})
"""S3's codes for an overloaded or failing store."""
FULL_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL, _UNREACHABLE = ("is full", "Free space on it"), ("cannot be reached", "Mount it again, or bring its server back")
_DISK_FAULTS: Mapping[int | None, tuple[str, str]] = {
    **dict.fromkeys(FULL_DISK_ERRORS, _FULL),
    errno.EROFS: ("is read-only", "Remount it"),
    errno.EIO: ("fails", "Check the disk, or the server that it is on"),
    **dict.fromkeys((errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN), _UNREACHABLE),
}
"""The fault of a local or mounted disk and its remedy, by error code. A retry may succeed after these errors.
Permission errors become AccessDenied. Errors with other codes are raised unchanged."""
_OUTAGE_STATUSES = frozenset({429, 500, 502, 503, 504})


def translate_client_failure(path: str, error: Exception) -> FrazilError | None:
    """Translate an outage or a denial of access; None for another error, such as a missing object."""
    if translated := _translate_credentials_error(path, error):
        return translated
    boto = sys.modules.get("botocore.exceptions")
    if boto is not None and isinstance(error, boto.ConnectionError | boto.HTTPClientError):
        return _store_failure(path, "cannot be reached", error)
    return _store_failure(path, "fails", error) if _is_outage(error) else None


def translate_staging_failure(folder: str, error: OSError) -> FrazilError | None:
    """Translate an error in staging. Returns None for an error that `translate_local_failure` does not know."""
    if urlsplit(folder).scheme not in OBJECT_STORES:
        return translate_local_failure(folder, error)
    if error.errno in FULL_DISK_ERRORS:
        return None
    # A record is never the cause, and a retry may succeed.
    return _translate_credentials_error(folder, error) or _store_failure(folder, "fails", error)


def _store_failure(path: str, problem: str, error: Exception) -> StorageUnavailable:
    remedy = "Check the store's state and limits, and its endpoint in the catalog's configuration"
    return StorageUnavailable(f"{path}: the object store {problem}: {_error_text(error)}", remedy=remedy)


def translate_local_failure(path: str, error: OSError) -> FrazilError | None:
    """Translate a fault of a local or mounted disk, or a denial of access; None for another error."""
    path = str(error.filename or path)
    if isinstance(error, PermissionError):
        return AccessDenied(f"{path}: the file system refuses access ({_error_text(error)}); grant this user access")
    if (fault := _DISK_FAULTS.get(error.errno)) is None:
        return None
    problem, remedy = fault
    text = f"the disk of {path} {problem}: {_error_text(error)}"
    return StorageUnavailable(text, remedy=f"{remedy}; nothing is lost")


@contextmanager
def translate_local_failures(path: str) -> Iterator[None]:
    """Raise what `translate_local_failure` returns. Errors of writes do not name the file."""
    try:
        yield
    except OSError as error:
        if (translated := translate_local_failure(path, error)) is None:
            raise
        raise translated from error


def _translate_credentials_error(path: str, error: Exception) -> FrazilError | None:
    boto = sys.modules.get("botocore.exceptions")
    if boto is not None and isinstance(error, boto.NoCredentialsError):
        # The error is the same if the host's metadata service does not respond.
        return StorageUnavailable(
            f"{path}: credentials for the object store are missing: {_error_text(error)}. Configure credentials, "
            "unless those of the host or role are only temporarily unavailable"
        )
    if is_credentials_expiry(error):
        return StorageUnavailable(
            f"{path}: the credentials of the object store have expired: {_error_text(error)}. The catalog issues new "
            "credentials when the table is next loaded"
        )
    is_partial = boto is not None and isinstance(error, boto.PartialCredentialsError)
    is_denied = is_object_store_error(error) and any(text in str(error) for text in _DENIED_TEXTS)
    if is_partial or is_denied or isinstance(error, PermissionError):
        return AccessDenied(
            f"{path}: the object store refuses frazil's credentials: {_error_text(error)}; correct them"
        )
    return None


def _is_outage(error: Exception) -> bool:
    answer = getattr(error.__cause__, "response", None)  # from botocore's ClientError, which s3fs translates
    if not isinstance(answer, dict):
        return isinstance(error, ConnectionError | TimeoutError)
    code = answer.get("Error", {}).get("Code")
    return code in _OUTAGE_CODES or answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in _OUTAGE_STATUSES


def is_storage_failure(error: Exception) -> bool:
    """Return whether the storage, and not the catalog, caused a commit's error."""
    is_local = isinstance(error, OSError) and error.errno is not None
    return is_object_store_error(error) or (is_local and not isinstance(error, ConnectionError | TimeoutError))


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]


_EXPIRED_CODES = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired")
"""Codes of S3 and STS. The first also matches `ExpiredTokenException`."""


def is_credentials_expiry(error: BaseException) -> bool:
    """Return whether expired credentials caused the error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AuthorizationExpiredError) or _has_expiry_code(cause):
            return True
        cause = cause.__cause__
    return False


def _has_expiry_code(error: BaseException) -> bool:
    response = getattr(error, "response", None)  # botocore's ClientError has a mapping; requests' errors have none
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    # PyArrow's errors, and an executor's error, which arrives as a frazil error, only have the text.
    text = f"{code} {error}" if isinstance(error, OSError | CommitUnavailable) else str(code)
    return any(each in text for each in _EXPIRED_CODES)
