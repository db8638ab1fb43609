"""Skips expensive parts of imports in a command's process, so that commands respond at once.

Only the process of a command uses this: `main` calls it, and importing the package never does.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """Makes imports of pandas fail as if pandas were not installed.

    Setting `sys.modules["pandas"]` to None would not work: compiled modules such as PyArrow's would use the None as the
    module.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)


_NO_PANDAS = _NoPandas()


def begin_light() -> None:
    """Start importing without garbage collection and without pandas.

    If pandas is installed, PyArrow imports it, the slowest import of all, to recognise pandas objects. Commands have no
    such objects.
    """
    gc.disable()
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NO_PANDAS)


def imported() -> None:
    """Restart garbage collection, and exclude the imported objects from it.

    Does nothing without `begin_light` before.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def allow_pandas() -> None:
    """Allow imports of pandas again, because PySpark needs pandas."""
    if _NO_PANDAS in sys.meta_path:
        sys.meta_path.remove(_NO_PANDAS)
