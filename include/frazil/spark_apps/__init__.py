"""The programs that Spark or the supervisor starts by path.

Python puts a program's folder first on its path, so a module here with a common name would hide another package's
module.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent

AGGREGATE_DAILY = _FOLDER / "aggregate_daily.py"
BACKFILL = _FOLDER / "backfill.py"
DRIVE_STREAM = _FOLDER / "drive_stream.py"
MAINTAIN_TABLE = _FOLDER / "maintain_table.py"
WRITE_APPLICATION = _FOLDER / "write_application.py"
WRITE_STREAM = _FOLDER / "write_stream.py"
