"""Where frazil keeps the files of this machine: `$FRAZIL_HOME`, by default `.frazil` in the current folder.

<home>/streams/<application>/   a writer's run folder: lock, status.json, exit.json, writer.log
<home>/declared/         the last sound declarations: see `frazil.spec.last_sound`
<home>/catalog.db        the embedded catalog     <home>/warehouse/   its tables
<home>/dev/              embedded Kafka and Airflow

JVM jars are in the user's cache instead, which checkouts share: see `frazil.spark.jars`.
"""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The absolute path of the folder, which is not created here."""
    return Path(os.environ.get("FRAZIL_HOME") or ".frazil").expanduser().absolute()


def run_folder(application: str) -> Path:
    """The run folder of one writer application on this machine; not created here.

    A stream that declares no application has one of its own, with the stream's name.
    """
    return home() / "streams" / application


def cache_folder() -> Path:
    """The folder for what checkouts share and can recreate; not created here."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "frazil"
