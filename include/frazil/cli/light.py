"""What a command's process leaves out while it imports, so that commands answer at once.

Only for the process of one command: `main` asks for it, never an import of the package.
"""

from __future__ import annotations

import gc
import sys


def begin_light() -> None:
    """Import without looking for garbage, and without pandas.

    PyArrow imports pandas, the slowest of all, wherever it is installed, to recognise its objects; commands have none.
    """
    gc.disable()
    if "pandas" not in sys.modules:
        sys.modules["pandas"] = None  # type: ignore[assignment] # an import of it fails as where it is not installed


def imported() -> None:
    """The command's modules are there, and stay: they are no garbage to look through. Nothing but after a start."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def allow_pandas() -> None:
    """Before Spark: PySpark needs it."""
    if "pandas" in sys.modules and sys.modules["pandas"] is None:
        del sys.modules["pandas"]
