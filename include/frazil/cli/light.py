"""What a command's process leaves out while it imports, so that commands answer at once.

Only for the process of one command: `main` asks for it, never an import of the package.
"""

from __future__ import annotations

import gc
import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    """An import of pandas fails as where it is not installed.

    None in `sys.modules` would not do: compiled modules such as PyArrow's take the None for the module.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if fullname == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=fullname)


_NO_PANDAS = _NoPandas()


def begin_light() -> None:
    """Import without looking for garbage, and without pandas.

    PyArrow imports pandas, the slowest of all, wherever it is installed, to recognise its objects; commands have none.
    """
    gc.disable()
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NO_PANDAS)


def imported() -> None:
    """Look for garbage again, but not among what was imported. Does nothing unless `begin_light` was called."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def allow_pandas() -> None:
    """Before Spark: PySpark needs it."""
    if _NO_PANDAS in sys.meta_path:
        sys.meta_path.remove(_NO_PANDAS)
