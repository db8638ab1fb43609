"""Opens the launcher of a writer application. Other modules call `open_launcher` instead of using a launcher's
class.
"""

from __future__ import annotations

from pathlib import Path

from frazil.host.launcher import Launcher
from frazil.host.local import LocalLauncher


def open_launcher(application: str, *, folder: Path | None = None) -> Launcher:
    """Return the launcher of a writer application, even if another process launched the application.

    `folder` is the application's run folder, if it is not in this process's FRAZIL_HOME.
    """
    return LocalLauncher(application, folder=folder)
