"""Counts this process's requests to object storage, by the two classes with different prices."""

from __future__ import annotations

import threading
from typing import Literal, NamedTuple

Kind = Literal["writes", "reads"]
"""`writes` include listings; `reads` are all other requests, except deletions."""

PART_BYTES = 5 * 2**20
"""Size of the parts in which Arrow uploads larger files."""


class StorageRequests(NamedTuple):
    writes: int = 0
    reads: int = 0


_lock = threading.Lock()
_counts: dict[Kind, int] = {"writes": 0, "reads": 0}


def count_request(kind: Kind, path: str) -> None:
    if is_remote(path):
        with _lock:
            _counts[kind] += 1


def counted_requests() -> StorageRequests:
    with _lock:
        return StorageRequests(_counts["writes"], _counts["reads"])


def upload_requests(path: str, size_bytes: int) -> int:
    """Return the number of requests that a data file's upload takes."""
    if not is_remote(path):
        return 0
    return 1 if size_bytes <= PART_BYTES else 2 + -(-size_bytes // PART_BYTES)


def is_remote(path: str) -> bool:
    scheme, found, _ = path.partition("://")
    return bool(found) and scheme != "file"
