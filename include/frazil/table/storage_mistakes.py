"""Says in one sentence what an error of an object store means, whichever of its clients raised it.

Arrow, which reads and writes data files, has only text; fsspec, which has all other objects, keeps S3's answer. Neither
an outage nor expired credentials end a stream for good.
"""

from __future__ import annotations

import errno
import sys
from urllib.parse import urlsplit

from frazil.errors import AccessDenied, CommitUnavailable, FrazilError
from frazil.spec.addresses import OBJECT_STORES, names_store
from frazil.table.expired import has_expired

MAX_ERROR_CHARACTERS = 600
"""Characters of an error in a sentence. Arrow names a long key first, and what happened last."""
_DENIED = ("ACCESS_DENIED", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch")
_OVERLOADED = frozenset({"SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling", "503"})
_LOCAL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What only this host's own disk raises."""
_OUTAGES = frozenset({429, 500, 502, 503, 504})


def client_failure(path: str, error: Exception) -> FrazilError | None:
    """What an error of fsspec's client means; None if it says something about the object."""
    if meant := _of_credentials(path, error):
        return meant
    boto = sys.modules.get("botocore.exceptions")
    if boto is not None and isinstance(error, boto.ConnectionError | boto.HTTPClientError):
        return CommitUnavailable(f"{path}: the object store cannot be reached: {_said(error)}")
    return CommitUnavailable(f"{path}: the object store fails: {_said(error)}") if _is_outage(error) else None


def staging_failure(folder: str, error: OSError) -> FrazilError | None:
    """What an error of Arrow, or of fsspec, means to a task that stages to this folder; None for a local disk's."""
    if urlsplit(folder).scheme not in OBJECT_STORES or error.errno in _LOCAL:
        return None
    # Whatever else it is, no record causes it, and the next try may do.
    outage = CommitUnavailable(f"{folder}: the object store fails: {_said(error)}")
    return _of_credentials(folder, error) or outage


def _of_credentials(path: str, error: Exception) -> FrazilError | None:
    boto = sys.modules.get("botocore.exceptions")
    if boto is not None and isinstance(error, boto.NoCredentialsError):
        # A host's metadata service that is silent looks the same.
        return CommitUnavailable(
            f"{path}: no credentials for the object store were found: {_said(error)}. Configure some, unless a host's "
            "or a role's are only away for a moment"
        )
    if has_expired(error):
        return CommitUnavailable(
            f"{path}: the credentials of the object store have expired: {_said(error)}. The catalog hands out newer "
            "ones with the table's next load"
        )
    half = boto is not None and isinstance(error, boto.PartialCredentialsError)
    if half or isinstance(error, PermissionError) or (names_store(error) and any(s in str(error) for s in _DENIED)):
        return AccessDenied(f"{path}: the object store refuses our credentials: {_said(error)}")
    return None


def _is_outage(error: Exception) -> bool:
    answer = getattr(error.__cause__, "response", None)  # of botocore's ClientError, which s3fs translates
    if not isinstance(answer, dict):
        return isinstance(error, ConnectionError | TimeoutError)
    code = answer.get("Error", {}).get("Code")
    return code in _OVERLOADED or answer.get("ResponseMetadata", {}).get("HTTPStatusCode") in _OUTAGES


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:MAX_ERROR_CHARACTERS]
