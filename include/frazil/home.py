"""The folders of this machine's files: `$FRAZIL_HOME`, by default `.frazil` in the current folder.

<home>/streams/<name>/   the run folder of a stream, or of an application that streams share: lock, status.json,
                         exit.json, writer.log
<home>/page/             what the operations page showed last: see `frazil.operations.remembered`; and which
                         processes serve it: see `frazil.host.page_servers`
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


def dev_airflow() -> Path:
    """The AIRFLOW_HOME of the Airflow that `frazil dev up --airflow` starts; not created here."""
    return home() / "dev" / "airflow"


def run_folder(name: str) -> Path:
    """The run folder of a stream, or of an application that streams share, on this machine; not created here."""
    return home() / "streams" / name


def make_folder(folder: Path) -> None:
    """Create a folder with its parents; whatever the umask, others cannot write into it."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o775, exist_ok=True)


def cache_folder() -> Path:
    """The folder for what checkouts share and can recreate; not created here."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "frazil"
