"""Chooses how a writer application runs: as a process of a host.

All other modules open launchers here, and never construct one by its class.
"""

from __future__ import annotations

from pathlib import Path

from frazil.host.launcher import Launcher
from frazil.host.local import LocalLauncher


def open_launcher(application: str, *, folder: Path | None = None) -> Launcher:
    """Return the launcher of one writer application, even if another process launched it.

    `folder` is the application's run folder, if that is not below this process's FRAZIL_HOME.
    """
    return LocalLauncher(application, folder=folder)
