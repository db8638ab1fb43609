"""Where frazil keeps what belongs to this machine: `$FRAZIL_HOME`, by default `.frazil` of the current folder.

<home>/streams/<application>/   a writer's run folder: lock, status.json, exit.json, writer.log, checkpoint-<epoch>/
<home>/declared/         what declarations said when they were sound last: see `frazil.spec.last_sound`
<home>/catalog.db        the embedded catalog     <home>/warehouse/   its tables
<home>/dev/              embedded Kafka and Airflow

JVM jars are not here but in the user's cache, which checkouts share: see `frazil.spark.jars`.
"""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder, absolute; not created here."""
    return Path(os.environ.get("FRAZIL_HOME") or ".frazil").expanduser().absolute()


def run_folder(application: str) -> Path:
    """The run folder of one writer application on this machine; made by whoever writes into it, not here.

    A stream that declares no application is one of its own, with the stream's name.
    """
    return home() / "streams" / application


def cache_folder() -> Path:
    """What checkouts share because it can be made again; not created here."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "frazil"
