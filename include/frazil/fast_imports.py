"""Skips expensive parts of imports, so that commands and writers start quickly."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """Makes imports of pandas fail.

    `sys.modules["pandas"] = None` does not help, because PyArrow would use None as the module.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)


_NO_PANDAS = _NoPandas()


def begin_fast_imports() -> None:
    """Turn off garbage collection and the slow import of pandas, which PyArrow tries."""
    gc.disable()
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NO_PANDAS)


def end_fast_imports() -> None:
    """Turn on garbage collection again, but exempt the objects that exist now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


@contextmanager
def fast_imports() -> Iterator[None]:
    """Import without garbage collection and pandas, which a user's own functions may import later."""
    begin_fast_imports()
    try:
        yield
    finally:
        end_fast_imports()
        allow_pandas()


def allow_pandas() -> None:
    if _NO_PANDAS in sys.meta_path:
        sys.meta_path.remove(_NO_PANDAS)
