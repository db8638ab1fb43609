"""Limits the memory that a library may take for one call, so that a record cannot make the host kill the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

_lock = threading.Lock()
_guards = 0
_unguarded = 0
"""The limit outside of all guards."""


def private_memory() -> int:
    """Return the bytes that the process has reserved; 0 where there is no limit to set."""
    try:
        import resource  # only Unix has it

        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except (ImportError, OSError):
        return 0


@contextlib.contextmanager
def limit_memory(growth: int) -> Iterator[None]:
    """Let allocations fail after the process's private memory has grown by `growth` bytes. Only Linux has this limit.

    Guards of several threads share the highest limit. Allocations of other threads may fail too: librdkafka then aborts
    the process, and the task's next attempt decodes in a process without librdkafka's threads.
    """
    if not (used := private_memory()):
        yield
        return
    import resource  # as in `private_memory`

    global _guards, _unguarded  # noqa: PLW0603 - the limit is the process's
    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        _unguarded = _unguarded if _guards else soft
        allowed = min(limit for limit in (used + growth, _unguarded, hard) if limit != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_DATA, (max(allowed, soft) if _guards else allowed, hard))
        _guards += 1
    try:
        yield
    finally:
        with _lock:
            _guards -= 1
            if not _guards:
                resource.setrlimit(resource.RLIMIT_DATA, (_unguarded, hard))
