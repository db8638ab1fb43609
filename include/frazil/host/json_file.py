"""Small JSON files that are replaced whole: a reader sees the old one or the new one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any


def replace_json(path: Path, value: Any) -> None:
    """Replace a file whole, in a folder that is made if missing: a reader sees the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of the thread as well: a step that Airflow has cancelled goes on beside another supervisor's.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
