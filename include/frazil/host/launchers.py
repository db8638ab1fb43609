"""Opens the launcher of a writer application, whose class no other module uses."""

from __future__ import annotations

from pathlib import Path

from frazil.host.launcher import Launcher
from frazil.host.local import LocalLauncher


def open_launcher(application: str, *, folder: Path | None = None) -> Launcher:
    """Return the launcher of a writer application, even if another process launched it.

    `folder` is its run folder, if it is not in this process's FRAZIL_HOME.
    """
    return LocalLauncher(application, folder=folder)
