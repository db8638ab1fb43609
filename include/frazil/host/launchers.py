"""The one place that chooses how a writer application runs: as a process of this host."""

from __future__ import annotations

from frazil.host.launcher import Launcher
from frazil.host.local import LocalLauncher


def open_launcher(application: str) -> Launcher:
    """The launcher of one writer application, even if another process launched it."""
    return LocalLauncher(application)
