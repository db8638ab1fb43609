"""The name of the user who runs a command, for the records that the command leaves."""

from __future__ import annotations

import getpass
import os


def person() -> str:
    """Return the user's name; `uid 50000` if the system has no name for the user, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
