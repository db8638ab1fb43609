"""Checks PyIceberg's configuration file before PyIceberg is imported and reads it."""

from __future__ import annotations

import os
from pathlib import Path

from frazil.errors import SpecError


def check_configuration() -> None:
    """Raise SpecError, with the path, if PyIceberg cannot read its configuration file."""
    named = os.environ.get("PYICEBERG_HOME")
    folders = (*([Path(named)] if named else []), Path("~").expanduser(), Path.cwd())
    file = next((folder / ".pyiceberg.yaml" for folder in folders if (folder / ".pyiceberg.yaml").is_file()), None)
    if file is None:
        return
    from pyiceberg.utils.config import Config  # not needed without the file

    try:
        Config()
    except Exception as error:  # anything that its YAML parser raises
        raise SpecError(f"{file} is not YAML that PyIceberg can read: {' '.join(str(error).split())}") from None
