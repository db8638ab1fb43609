"""Finds the single records that make a piece of work fail.

The cause need not be known (a value overflows a transform, fits no statistic, or meets a bug of a library): halves are
tried until the record stands alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from frazil.errors import FrazilError
from frazil.spec.addresses import names_store

log = logging.getLogger(__name__)

T = TypeVar("T")


def is_environment(error: Exception) -> bool:
    """Whether an error certainly comes from the machine or a service, so that no record is to blame.

    Other errors may come from there too: a record is blamed only if it fails alone, in memory, and again.
    """
    if isinstance(error, OSError):
        return error.errno is not None or names_store(error)
    return isinstance(error, FrazilError | MemoryError)


def narrowed(count: int, attempt: Callable[[int, int], T]) -> Iterator[tuple[int, int, T | Exception]]:
    """Records `[0, count)` in pieces `(start, end, what attempt(start, end) returned)`, in order.

    A piece that raises is halved; a record that raises alone is a piece whose result is the exception. Errors of the
    environment are raised. With b bad records of n, that is at most 2b·log2(n) + 1 attempts, and no record is tried
    more than log2(n) + 2 times, however many are bad.
    """
    if count == 0:
        return
    pieces = [(0, count)]
    while pieces:
        start, end = pieces.pop()
        try:
            yield start, end, attempt(start, end)
        except Exception as error:
            if is_environment(error):
                raise
            if end - start == 1:
                yield start, end, error
            else:
                middle = (start + end) // 2
                pieces += [(middle, end), (start, middle)]
