"""Translates errors of catalog clients to frazil's errors, with a message of one sentence. Errors of Glue (botocore)
and Hive (thrift) are recognised without importing these optional packages.
"""

from __future__ import annotations

import re
import sys
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pyiceberg.exceptions import CommitStateUnknownException, NotInstalledError, RESTError
from sqlalchemy.exc import SQLAlchemyError

from frazil import clock
from frazil.errors import AccessDenied, CommitUnavailable, FrazilError, SpecError
from frazil.extras import require_module
from frazil.spec.addresses import find_path_problem

_EXTRA_PATTERN = re.compile(r"pyiceberg\[([\w-]+)\]")
_PACKAGES = {"glue": ("boto3", "glue"), "hive": ("thrift", "hive"), "sql-postgres": ("psycopg2", "postgres")}
"""PyIceberg's extras, each with a module that it installs, and the frazil extra that installs the same module."""
_STORAGE_MODULES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss"), "adlfs"),
}
"""Modules that access a location, by its scheme."""
_DENIED_CODES = frozenset(
    {"AccessDeniedException", "AccessDenied", "UnrecognizedClientException", "InvalidSignatureException", "403"}
)
_MISCONFIGURED = ("Config", "Invalid", "NoRegion", "ParamValidation", "ProfileNotFound", "Unknown", "Unsupported")
"""Prefixes of the names of botocore's configuration errors."""
_NO_LOCATION = "No default path is set"
"""PyIceberg's error for a new table without location in a catalog without warehouse."""
_HIVE_3_TYPE = "timestamp with local time zone"
_EXPIRED_CODES = frozenset({"ExpiredTokenException", "ExpiredToken"})
_DATABASE_REMEDIES = {
    **dict.fromkeys(("disk I/O error", "disk is full"), "Check the free space on its disk first"),
    "database is locked": "End the program that has locked its file",
}
_DATABASE_REFUSAL_TEXTS = ("authentication failed", "permission denied", "readonly database", "no password supplied")
CATALOG_REMEDY = "Start the catalog and its storage, make them reachable from this host, or correct .pyiceberg.yaml"


def unreachable_error(problem: str) -> CommitUnavailable:
    return CommitUnavailable(problem, remedy=CATALOG_REMEDY)


class NotIcebergResponse(RESTError):
    """The response comes from another service, such as a gateway or a login page."""


def _has_iceberg_error(error: Exception) -> bool:
    response: Any = getattr(error.__cause__, "response", None)
    try:
        return "type" in response.json()["error"]
    except (AttributeError, ValueError, KeyError, TypeError):
        return False


def _is_not_from_iceberg(error: Exception) -> bool:
    if isinstance(error, ValidationError):
        return error.title.endswith("Response")  # PyIceberg's models of a REST catalog's responses
    return isinstance(error, NotIcebergResponse) or (type(error) is RESTError and not _has_iceberg_error(error))


def _not_iceberg_error(catalog: str, error: Exception) -> CommitUnavailable:
    response = getattr(error.__cause__, "response", None)
    problem = one_line(error) if response is None else f"status {response.status_code} without an Iceberg error"
    if isinstance(error, ValidationError):
        problem = f"the JSON is not a valid {error.title}"
    # A stream may restart after this error: a wrong uri looks like a gateway whose catalog is down.
    return CommitUnavailable(
        f"the uri of the catalog {catalog!r} does not respond like an Iceberg REST catalog: {problem}. Correct its "
        "uri and warehouse. If the uri is a gateway whose catalog is down, wait until the catalog is back"
    )


def check_storage(name: str, warehouse: str) -> None:
    """Raise SpecError if frazil cannot store files in the warehouse, or MissingExtra for a missing package."""
    if problem := find_path_problem(warehouse):
        raise SpecError(f"the warehouse of the catalog {name!r} {problem}: {warehouse!r}")
    module = _STORAGE_MODULES.get(urlsplit(warehouse).scheme)
    if module is not None:
        require_module(module)


def translate_loading_error(catalog: str, error: Exception) -> FrazilError | None:
    """Translate an error in opening a catalog, if the catalog's configuration caused the error. Raises MissingExtra."""
    if isinstance(error, NotInstalledError):
        for module, extra in (_PACKAGES[name] for name in _EXTRA_PATTERN.findall(str(error)) if name in _PACKAGES):
            require_module(module, extra=extra)
    if "get_frozen_credentials" in str(error):  # boto3 returns None, which PyIceberg's SigV4 does not expect
        return AccessDenied(
            f"the catalog {catalog!r} requires signed requests (rest.sigv4-enabled), but no AWS credentials exist: "
            "set client.access-key-id and client.secret-access-key, a profile or a role"
        )
    if isinstance(error, RESTError) and type(error) is RESTError and _has_iceberg_error(error):
        return SpecError(
            f"the warehouse of the catalog {catalog!r} does not exist, or the server refuses its uri: {one_line(error)}"
        )
    if _is_not_from_iceberg(error):
        return _not_iceberg_error(catalog, error)
    if type(error).__name__ == "MissingGreenlet":
        return SpecError(
            f"the catalog {catalog!r} names an asynchronous driver: write postgresql+psycopg2://… as its uri"
        )
    if isinstance(error, ValueError | TypeError | AttributeError | NotInstalledError | SQLAlchemyError):
        return configuration_error(catalog, error)
    return None


def configuration_error(catalog: str, error: Exception) -> SpecError:
    remedy = "; set its `warehouse`, or declare `table.location`" if _NO_LOCATION in str(error) else ""
    return SpecError(f"the catalog {catalog!r} is misconfigured: {one_line(error)}{remedy}")


def translate_client_error(catalog: str, error: Exception) -> FrazilError | None:
    """Translate an error of PyIceberg, or of the clients of Glue and Hive."""
    if _is_not_from_iceberg(error):
        return _not_iceberg_error(catalog, error)
    if isinstance(error, ValueError) and _NO_LOCATION in str(error):
        return configuration_error(catalog, error)
    if isinstance(error, CommitStateUnknownException):
        return CommitUnavailable(
            f"the catalog {catalog!r} failed, and the outcome of the change is unknown: {one_line(error)}"
        )
    boto = sys.modules.get("botocore.exceptions")
    if boto is not None and isinstance(error, boto.BotoCoreError | boto.ClientError):
        return _translate_aws(catalog, error, boto)
    return _translate_metastore(catalog, error)


def translate_database_error(catalog: str, reason: str) -> FrazilError:
    if any(sign in reason for sign in _DATABASE_REFUSAL_TEXTS):
        return AccessDenied(
            f"the database of the catalog {catalog!r} refuses access: {reason}; correct its credentials or permissions"
        )
    problem = f"the database of the catalog {catalog!r} cannot be used: {' '.join(reason.split())}"
    remedies = (remedy for sign, remedy in _DATABASE_REMEDIES.items() if sign in reason)
    return CommitUnavailable(problem, remedy=next(remedies, CATALOG_REMEDY))


def _translate_aws(catalog: str, error: Any, boto: Any) -> FrazilError | None:
    code = error.response.get("Error", {}).get("Code", "") if isinstance(error, boto.ClientError) else None
    if isinstance(error, boto.PartialCredentialsError):
        return AccessDenied(f"the AWS credentials for the catalog {catalog!r} are incomplete: {one_line(error)}")
    if code is None and type(error).__name__.startswith(_MISCONFIGURED):
        return configuration_error(catalog, error)
    if code is None:  # includes missing credentials, which occur while a host's metadata service does not respond
        return unreachable_error(f"the catalog {catalog!r} cannot be reached: {one_line(error)}")
    if code in _EXPIRED_CODES:
        return CommitUnavailable(f"the credentials for the catalog {catalog!r} have expired: {one_line(error)}")
    if code in _DENIED_CODES:
        return AccessDenied(f"the catalog {catalog!r} refuses frazil's credentials: {one_line(error)}; correct them")
    return None


def _translate_metastore(catalog: str, error: Exception) -> FrazilError | None:
    """Translate an error of a Hive metastore, or of the connection to it."""
    transport, thrift = sys.modules.get("thrift.transport.TTransport"), sys.modules.get("thrift.Thrift")
    metastore = f"the metastore of the catalog {catalog!r}"
    if transport is not None and isinstance(error, transport.TTransportException):
        return unreachable_error(f"{metastore} cannot be reached: {one_line(error)}")
    if type(error).__name__ == "MetaException" and _HIVE_3_TYPE in str(error):
        return SpecError(
            f"{metastore} does not have the type {_HIVE_3_TYPE!r} of Hive 3: set hive.hive2-compatible: true in the "
            "catalog's configuration"
        )
    if thrift is None or not isinstance(error, thrift.TApplicationException):
        return None
    if error.type == error.UNKNOWN_METHOD:
        return SpecError(
            f"{metastore} does not have a method that PyIceberg calls: {one_line(error)}. Use a metastore of Hive 2 or "
            "3, because Hive 4 removed methods, or another catalog"
        )
    return CommitUnavailable(f"{metastore} failed: {one_line(error)}; see its log")


def one_line(error: Exception) -> str:
    """Return an error's text on one line, without Pydantic's links."""
    lines = (line.strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line and not line.startswith("For further information"))


def retry_after_s(error: BaseException) -> float | None:
    headers = getattr(getattr(error.__cause__, "response", None), "headers", {})
    value = str(headers.get("Retry-After") or "").strip()
    if value.isascii() and value.isdigit():  # excludes ², which is a digit too
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - clock.now_ms() / 1000)
    except ValueError:
        return None
