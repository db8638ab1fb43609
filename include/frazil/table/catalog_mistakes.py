"""Says in one sentence what a catalog's client means: each has errors of its own, and some have none for a mistake.

The clients of Glue (botocore) and Hive (thrift) are extras. Their errors are known only where something imported them.
"""

from __future__ import annotations

import re
import sys
from urllib.parse import urlsplit

from pyiceberg.exceptions import NotInstalledError, RESTError
from sqlalchemy.exc import SQLAlchemyError

from frazil.errors import AccessDenied, CommitUnavailable, FrazilError, SpecError
from frazil.extras import require

_EXTRA = re.compile(r"pyiceberg\[([\w-]+)\]")
_PACKAGES = {"glue": ("boto3", "glue"), "hive": ("thrift", "hive"), "sql-postgres": ("psycopg2", "postgres")}
"""The module that each of PyIceberg's extras for catalogs brings, and our extra that brings it."""
_STORAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "s3n": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
}
"""The module that frazil reaches a location with, by its scheme."""
_DENIED = frozenset(
    {"AccessDeniedException", "AccessDenied", "UnrecognizedClientException", "InvalidSignatureException", "403"}
)
_MISCONFIGURED = ("Config", "Invalid", "NoRegion", "ParamValidation", "ProfileNotFound", "Unknown", "Unsupported")
"""How the names of botocore's errors begin that no other attempt mends."""
_EXPIRED = frozenset({"ExpiredTokenException", "ExpiredToken"})


def check_storage(warehouse: str) -> None:
    """Raise MissingExtra where the package is missing that a warehouse's location needs."""
    module = _STORAGES.get(urlsplit(warehouse).scheme)
    if module is not None:
        require(module)


def loading_error(catalog: str, error: Exception) -> FrazilError | None:
    """What the error of opening a catalog means; None if it is none of a configuration.

    Raises MissingExtra where PyIceberg lacks a package.
    """
    if isinstance(error, NotInstalledError):
        for module, extra in (_PACKAGES[name] for name in _EXTRA.findall(str(error)) if name in _PACKAGES):
            require(module, extra=extra)
    if "get_frozen_credentials" in str(error):  # boto3 returns None, which PyIceberg's SigV4 does not expect
        return AccessDenied(
            f"the catalog {catalog!r} wants signed requests (rest.sigv4-enabled), and there are no AWS credentials: "
            "set client.access-key-id and client.secret-access-key, a profile or a role"
        )
    if isinstance(error, RESTError) and type(error) is RESTError:
        return SpecError(
            f"the uri of the catalog {catalog!r} is no Iceberg REST catalog, or does not know the warehouse: "
            f"{one_line(error)}"
        )
    if type(error).__name__ == "MissingGreenlet":
        return SpecError(
            f"the catalog {catalog!r} names an asynchronous driver: write postgresql+psycopg2://… as its uri"
        )
    if isinstance(error, ValueError | TypeError | AttributeError | NotInstalledError | SQLAlchemyError):
        return SpecError(f"the catalog {catalog!r} is wrongly configured: {one_line(error)}")
    return None


def client_error(catalog: str, error: Exception) -> FrazilError | None:
    """What an error of the clients of Glue and Hive means; None for all others."""
    boto = sys.modules.get("botocore.exceptions")
    if boto is not None and isinstance(error, boto.BotoCoreError):
        if isinstance(error, boto.PartialCredentialsError):
            return AccessDenied(f"the AWS credentials for the catalog {catalog!r} are not whole: {one_line(error)}")
        if type(error).__name__.startswith(_MISCONFIGURED):
            return SpecError(f"the catalog {catalog!r} is wrongly configured: {one_line(error)}")
        # Also where no credentials are found: so does a host look whose metadata service is silent for a moment.
        return CommitUnavailable(f"the catalog {catalog!r} cannot be reached: {one_line(error)}")
    if boto is not None and isinstance(error, boto.ClientError):
        return _refused(catalog, error, error.response.get("Error", {}).get("Code", ""))
    thrift = sys.modules.get("thrift.transport.TTransport")
    if thrift is not None and isinstance(error, thrift.TTransportException):
        return CommitUnavailable(f"the metastore of the catalog {catalog!r} cannot be reached: {one_line(error)}")
    return None


def _refused(catalog: str, error: Exception, code: str) -> FrazilError | None:
    if code in _EXPIRED:
        return CommitUnavailable(f"the credentials for the catalog {catalog!r} have expired: {one_line(error)}")
    if code in _DENIED:
        return AccessDenied(f"the catalog {catalog!r} refuses our credentials: {one_line(error)}; correct them")
    return None


def one_line(error: Exception) -> str:
    """An error's text on one line, without a validator's links."""
    lines = (line.strip() for line in str(error).splitlines())
    return " ".join(line for line in lines if line and not line.startswith("For further information"))
