"""The programs that Spark or the supervisor starts by path.

The programs have a folder of their own because Python puts a program's folder first on its path. A module with a common
name (`types.py`, `kafka.py`) in that folder would hide another package's module.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

AGGREGATE_DAILY = _HERE / "aggregate_daily.py"
BACKFILL = _HERE / "backfill.py"
DRIVE_STREAM = _HERE / "drive_stream.py"
MAINTAIN_TABLE = _HERE / "maintain_table.py"
WRITE_APPLICATION = _HERE / "write_application.py"
WRITE_STREAM = _HERE / "write_stream.py"
