"""Skips expensive parts of imports in a command's process, so that commands start quickly.

Only the process of a command uses this: `main` calls it, and importing the package never does.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """Makes imports of pandas fail as if pandas were not installed.

    Setting `sys.modules["pandas"]` to None would not work: compiled modules such as PyArrow's would then use None as
    the module.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)


_NO_PANDAS = _NoPandas()


def begin_fast_imports() -> None:
    """Turn off garbage collection and imports of pandas, so that later imports are fast.

    If pandas is installed, PyArrow imports it to recognise pandas objects, which is the slowest import of all. Commands
    have no such objects.
    """
    gc.disable()
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NO_PANDAS)


def end_fast_imports() -> None:
    """Turn on garbage collection again, and exclude the objects that exist now from it.

    Does nothing if `begin_fast_imports` was not called.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def allow_pandas() -> None:
    """Allow imports of pandas again, because PySpark needs pandas."""
    if _NO_PANDAS in sys.meta_path:
        sys.meta_path.remove(_NO_PANDAS)
