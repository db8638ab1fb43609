"""Normalises the many spellings of a file's path, so that a storage listing can be compared with a table's metadata.

Two spellings that might be two different files count as one file, so that a mistake keeps a file and never deletes one.
"""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple
from urllib.parse import unquote

_FAMILY = {"": "file", "s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)


class Place(NamedTuple):
    """Location of a file or folder. Files are compared by `path` alone, because one bucket may have many names."""

    store: str
    """The kind of storage, with its bucket or host: `s3:bucket`, `file:`."""
    path: str
    """Path from the root, URL-decoded, without repeated or trailing slashes."""

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    def lies_in(self, folder: Place) -> bool:
        """Return whether this path is the folder itself or lies below it."""
        return self.store == folder.store and below(self.path, folder.path)


def below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def place_of(path: str) -> Place:
    """Normalise a path. `s3a://b//t/x` equals `s3://b/t/x/`; `file:/t/x` and `file:///t/x` equal `/t/x`."""
    match = _SCHEME.match(path)
    scheme = match[1].lower() if match else ""
    family, rest = _FAMILY.get(scheme, scheme), path[match.end() :] if match else path
    authority = ""
    if family != "file" and rest.startswith("//"):
        authority, _, rest = rest[2:].partition("/")
    return Place(f"{family}:{authority.lower()}", _plain(rest))


def _plain(path: str) -> str:
    while "%" in path and (decoded := unquote(path)) != path:
        path = decoded
    path = "/" + path.strip("/")
    return posixpath.normpath(path) if "//" in path or "/." in path else path
