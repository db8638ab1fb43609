"""Small files, each replaced atomically, so that several processes can use them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from frazil.home import make_folder


def replace_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    replace_text(path, json.dumps(value), mode=mode)


def replace_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file, and create its folder. A reader sees the old or the new content. Raises OSError."""
    make_folder(path.parent)
    # The name includes the thread: a step that Airflow cancelled continues while the next supervisor runs.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "w") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """Return the parsed file; None if it does not exist. Raises ValueError if it is not JSON."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
