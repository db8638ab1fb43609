"""PyIceberg's configuration file, looked at before PyIceberg does: it reads the file while it is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from frazil.errors import SpecError

FILE = ".pyiceberg.yaml"


def check_configuration() -> None:
    """Raises SpecError that names the file where PyIceberg cannot read it; no file is well."""
    file = _file()
    if file is None:
        return
    from pyiceberg.utils.config import Config  # noqa: PLC0415 - not where there is no such file

    try:
        Config()
    except Exception as error:  # whatever its YAML parser raises
        raise SpecError(f"{file} is not the YAML that PyIceberg reads: {' '.join(str(error).split())}") from None


def exit_if_unreadable() -> None:
    """For the beginning of a process, before it imports PyIceberg: say what is wrong, and end with SpecError's code."""
    try:
        check_configuration()
    except SpecError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def _file() -> Path | None:
    """The first of the places where PyIceberg looks."""
    named = os.environ.get("PYICEBERG_HOME")
    folders = (*([Path(named)] if named else []), Path("~").expanduser(), Path.cwd())
    return next((folder / FILE for folder in folders if (folder / FILE).is_file()), None)
