"""Opens the launcher of a writer application. Only this module refers to the launcher's class."""

from __future__ import annotations

from pathlib import Path

from frazil.host.launcher import Launcher
from frazil.host.local import LocalLauncher


def open_launcher(application: str, *, folder: Path | None = None) -> Launcher:
    """Return a writer application's launcher. `folder` is its run folder, if this is outside FRAZIL_HOME."""
    return LocalLauncher(application, folder=folder)
