"""Checks addresses in declarations: brokers and storage locations."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

OBJECT_STORES = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "wasb", "wasbs"})
"""URI schemes that PyIceberg opens through fsspec."""

FOLDER_PROPERTIES = ("write.data.path", "write.metadata.path")

_PROTOCOL = re.compile(r"(?:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://", re.IGNORECASE)
_SERVER = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]@]+)(?::(?P<port>\d+))?")
_MAX_PORT = 65_535
_TRUNCATING_CHARACTERS = re.compile(r"[#?\x00-\x1f\x7f]")
"""Characters at which storage libraries truncate a path."""


def find_servers_problem(text: str) -> str | None:
    """Return the problem with a list of brokers, if any.

    A text with `@` or `=` may contain credentials, so it is not quoted.
    """
    if sign := next((sign for sign in "@=" if sign in text), None):
        return (
            f"has {sign!r}, which suggests credentials next to a host; write host:port, and set the credentials in "
            "source.properties (sasl.username, sasl.password)"
        )
    return next((problem for server in text.split(",") if (problem := _find_server_problem(server.strip()))), None)


def _find_server_problem(server: str) -> str | None:
    if not server:
        return "has an empty entry next to a comma; write host:port, separated by commas"
    bare = _PROTOCOL.sub("", server, count=1)
    if "://" in bare:
        host = re.split(r"[\s:/?#\[\]]", bare.partition("://")[2], maxsplit=1)[0] or "host"
        return f"names {server!r}, which is a URL; write host:port, such as {host}:9092"
    match = _SERVER.fullmatch(bare)
    if match is None:
        return f"names {server!r}, which is not host:port"
    if match["port"] is None:
        return f"names {server!r} without a port; write {server}:9092 if the brokers listen on 9092"
    if not 0 < int(match["port"]) <= _MAX_PORT:
        return f"names {server!r}, whose port is not 1 to {_MAX_PORT}"
    return None


def find_path_problem(text: str) -> str | None:
    """Return the problem with a location's path, if any.

    Storage libraries read the text after `#` or `?` as a fragment or query, and drop control characters.
    """
    sign = _TRUNCATING_CHARACTERS.search(text)
    return f"has {sign[0]!r}, at which storage libraries truncate a path; choose a folder without it" if sign else None


def find_location_problem(text: str) -> str | None:
    if problem := find_path_problem(text):
        return problem
    if text.startswith("/"):
        return None
    parts = urlsplit(text)
    if parts.scheme == "file" and parts.path.startswith("/"):
        return None
    if parts.scheme in OBJECT_STORES and parts.netloc:
        return None
    schemes = ", ".join(sorted(OBJECT_STORES))
    return (
        f"is not a location for files; write an absolute folder, file:///…, or a URI such as s3://bucket/… ({schemes})"
    )


def is_object_store_error(error: Exception) -> bool:
    """Return whether an Arrow error comes from an object store. Only the error's text shows this."""
    return isinstance(error, OSError) and any(sign in str(error) for sign in ("AWS Error", "google::cloud", "Azure"))
