"""Opens the launcher of a writer application. Hides the launcher's class from other modules."""

from __future__ import annotations

from pathlib import Path

from frazil.host.launcher import Launcher
from frazil.host.local import LocalLauncher


def open_launcher(application: str, *, folder: Path | None = None) -> Launcher:
    """Return a writer application's launcher. `folder` is a run folder outside FRAZIL_HOME."""
    return LocalLauncher(application, folder=folder)
