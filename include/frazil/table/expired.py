"""Distinguishes expired credentials from wrong ones. Loading the table again renews expired credentials."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.exceptions import AuthorizationExpiredError

from frazil.errors import CommitUnavailable

_CODES = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired")
"""Error codes of S3 and STS for expired credentials. The first also matches `ExpiredTokenException`."""


def has_expired(error: BaseException) -> bool:
    """Return whether an error or one of its causes means that credentials have expired.

    PyArrow has no error code for this, so its message is searched for S3's error codes.
    """
    return any(isinstance(each, AuthorizationExpiredError) or _has_expiry_code(each) for each in _causes(error))


def _has_expiry_code(error: BaseException) -> bool:
    response = getattr(error, "response", None)  # botocore's ClientError has a mapping; requests' errors have none
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    # An executor's error arrives as a frazil error, with only the text.
    said = f"{code} {error}" if isinstance(error, OSError | CommitUnavailable) else str(code)
    return any(each in said for each in _CODES)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
