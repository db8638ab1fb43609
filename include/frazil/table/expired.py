"""Tells expired credentials from wrong ones: the next load of the table brings newer ones."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.exceptions import AuthorizationExpiredError

_CODES = ("ExpiredToken", "TokenRefreshRequired", "RequestExpired")
"""S3's and STS's error codes (`ExpiredTokenException` begins with the first)."""


def has_expired(error: BaseException) -> bool:
    """Whether an error, or one that caused it, says that the credentials have expired.

    PyArrow has no error code for that, only S3's own message.
    """
    return any(isinstance(each, AuthorizationExpiredError) or _names_a_code(each) for each in _causes(error))


def _names_a_code(error: BaseException) -> bool:
    response = getattr(error, "response", None)  # botocore's ClientError; not every one is a mapping (requests)
    code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    said = f"{code} {error}" if isinstance(error, OSError) else str(code)
    return any(each in said for each in _CODES)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
