"""Finds the records that make an operation fail, by bisection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from frazil.errors import FrazilError
from frazil.spec.addresses import is_object_store_error

log = logging.getLogger(__name__)

T = TypeVar("T")


def is_environment_error(error: Exception) -> bool:
    """Return whether the host or a service certainly caused the error, rather than a record."""
    if isinstance(error, OSError):
        return error.errno is not None or is_object_store_error(error)
    return isinstance(error, FrazilError | MemoryError)


def bisect_failures(count: int, attempt: Callable[[int, int], T]) -> Iterator[tuple[int, int, T | Exception]]:
    """Call `attempt` on pieces of the records `[0, count)`, and yield `(start, end, result)` for each piece, in order.

    A piece for which `attempt` raises is bisected. The result of a single failing record is its exception. Errors of
    the environment are raised.
    """
    if count == 0:
        return
    pieces = [(0, count)]
    while pieces:
        start, end = pieces.pop()
        try:
            yield start, end, attempt(start, end)
        except Exception as error:
            if is_environment_error(error):
                raise
            if end - start == 1:
                yield start, end, error
            else:
                middle = (start + end) // 2
                pieces += [(middle, end), (start, middle)]
