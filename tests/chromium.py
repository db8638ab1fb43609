"""The Chromium of this machine, for the browser tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL = (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"])


def installed() -> str | None:
    """Return the path of this machine's browser; None if it has none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def may_install() -> bool:
    """Return whether the tests may install the browser: they run as root on Debian or Ubuntu."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install() -> str | None:
    """Install the browser. Returns its path; None if the installation failed."""
    for command in INSTALL:
        with suppress(subprocess.SubprocessError):
            subprocess.run(command, check=False, capture_output=True, timeout=200)
    return installed()
