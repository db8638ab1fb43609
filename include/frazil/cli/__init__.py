"""The `frazil` command. On an unsupported Python version, importing this package ends the process with a message."""

from __future__ import annotations

import sys

from frazil import SUPPORTED_PYTHONS

if not SUPPORTED_PYTHONS[0] <= sys.version_info[:2] <= SUPPORTED_PYTHONS[1]:
    first, last = (".".join(map(str, version)) for version in SUPPORTED_PYTHONS)
    sys.exit(
        f"UnsupportedVersion: {sys.executable} is Python {sys.version.split()[0]}, and frazil runs with {first} to "
        f"{last}. Install frazil in a venv with one of these."
    )
