"""The folder of frazil's files on this machine: `$FRAZIL_HOME`, by default `.frazil` in the current folder.

<home>/streams/<name>/   the run folder of a stream, or of an application that streams share: lock, status.json,
                         exit.json, writer.log
<home>/page/             the last contents of the operations page: see `frazil.operations.read_cache`; and the
                         processes that serve the page: see `frazil.host.processes`
<home>/maintain/         logs of `frazil maintain`, by table
<home>/declared/         the last valid declarations: see `frazil.spec.last_valid`
<home>/catalog.db        the embedded catalog     <home>/warehouse/   its tables
<home>/dev/              embedded Kafka and Airflow

JVM jars are in the user's cache folder instead, so that checkouts share them: see `frazil.spark.jars`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MIN_FREE_BYTES = 2**16
"""Minimum free space: a disk with less counts as full, because a log or a run folder's record may no longer fit."""


def home() -> Path:
    """Return the absolute path of frazil's folder, which may not exist."""
    return Path(os.environ.get("FRAZIL_HOME") or ".frazil").expanduser().absolute()


def streams_folder() -> Path:
    """Return the absolute path of the folder of declared streams: `$FRAZIL_STREAMS`, by default `include/streams`."""
    return Path(os.environ.get("FRAZIL_STREAMS") or "include/streams").absolute()


def dev_airflow_home() -> Path:
    """Return the AIRFLOW_HOME of the Airflow that `frazil dev up --airflow` starts."""
    return home() / "dev" / "airflow"


def run_folder(name: str) -> Path:
    """Return this machine's run folder of a stream or of a shared application."""
    return home() / "streams" / name


def full_disk_message(folder: Path) -> str:
    """Return a sentence that says what to do, if the folder's disk is full; otherwise an empty string."""
    existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), folder)
    try:
        free = shutil.disk_usage(existing).free
    except OSError:
        return ""
    return f"the disk of {folder} is full: free some space" if free < MIN_FREE_BYTES else ""


def make_folder(folder: Path) -> None:
    """Create a folder and its parents. Users outside its group cannot write into it, whatever the umask."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o775, exist_ok=True)


def cache_folder() -> Path:
    """Return the folder for files that checkouts share and that can be recreated."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "frazil"
