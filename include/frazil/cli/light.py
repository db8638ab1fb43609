"""Skips expensive parts of imports in a command's process, so that commands answer at once.

Only for the process of one command: `main` calls it, never an import of the package.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """Makes imports of pandas fail as if it were not installed.

    None in `sys.modules` would not work: compiled modules such as PyArrow's would use the None as the module.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)


_NO_PANDAS = _NoPandas()


def begin_light() -> None:
    """Import without garbage collection and without pandas.

    PyArrow imports pandas, the slowest import of all, if it is installed, to recognise its objects; commands have none.
    """
    gc.disable()
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NO_PANDAS)


def imported() -> None:
    """Restart garbage collection, except for imported objects. Does nothing unless `begin_light` was called."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def allow_pandas() -> None:
    """Allow pandas again: PySpark needs it."""
    if _NO_PANDAS in sys.meta_path:
        sys.meta_path.remove(_NO_PANDAS)
