"""Where frazil keeps the files of this machine: `$FRAZIL_HOME`, by default `.frazil` in the current folder.

<home>/streams/<stream>/            a writer's run folder: lock, status.json, exit.json, writer.log
<home>/applications/<application>/  the run folder of an application that streams share, with the same files
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


def run_folder(stream: str) -> Path:
    """The run folder of one stream's writer on this machine, whatever application runs it; not created here."""
    return home() / "streams" / stream


def application_folder(application: str) -> Path:
    """The run folder of one application that streams share, on this machine; not created here."""
    return home() / "applications" / application


def cache_folder() -> Path:
    """The folder for what checkouts share and can recreate; not created here."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "frazil"
