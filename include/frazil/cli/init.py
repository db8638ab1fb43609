"""`frazil init`: writes a project's first files: two DAG files, and an example of a stream."""

from __future__ import annotations

import os
from pathlib import Path

import click

from frazil.cli.options import json_option
from frazil.cli.output import echo, echo_json
from frazil.home import streams_folder

STREAMS_DAGS = '''\
"""The DAGs of frazil for the streams of this project."""

from pathlib import Path

from frazil import airflow as frazil

PROJECT = Path(__file__).resolve().parents[1] / "include"
STREAMS, AGGREGATIONS = PROJECT / "streams", PROJECT / "aggregations"

globals().update(frazil.writer_dags(STREAMS))
audits = frazil.audit_dag(STREAMS)
globals().update(frazil.partition_dags(STREAMS, expectations=PROJECT / "expectations"))
globals().update(frazil.daily_dags(AGGREGATIONS, streams=STREAMS))
maintenance = frazil.maintenance_dag(STREAMS)
health = frazil.health_dag(STREAMS, aggregations=AGGREGATIONS)
backfill = frazil.backfill_dag(STREAMS)
dead_letters = frazil.dead_letters_dag(STREAMS)
'''
DECLARATIONS_DAGS = '''\
"""Reports invalid declarations in Airflow's UI. This file defines no DAG."""

from pathlib import Path

from frazil.airflow import check_declarations

PROJECT = Path(__file__).resolve().parents[1] / "include"

check_declarations(PROJECT / "streams", aggregations=PROJECT / "aggregations")
'''
DEFAULTS = """\
# Settings that all streams of this folder share. FRAZIL_KAFKA is the brokers' address.
source: {bootstrap-servers: "${env:FRAZIL_KAFKA}"}
"""
EXAMPLE = """\
# An example: each JSON record of the topic `rides` becomes a row of the table `city.rides`.
name: rides
source: {topics: [rides], format: json}
table: city.rides
schema:
  id: long not null
  rider: string
  fare: decimal(8, 2)
  started_at: timestamptz not null
event-time: started_at
partition-by: [day(started_at)]
"""
FILES = {
    "dags/streams.py": STREAMS_DAGS,
    "dags/declarations.py": DECLARATIONS_DAGS,
    "include/streams/_defaults.yaml": DEFAULTS,
    "include/streams/rides.yaml": EXAMPLE,
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".")
@json_option
def init(folder: Path, *, as_json: bool) -> None:
    """Write a project's first files into FOLDER, by default this folder. Existing files are kept. Refuses the checkout
    of frazil.

    Airflow loads `dags/`. The streams are declared in `include/streams/`, which has an example.

    \b
    Example:
      frazil init && FRAZIL_KAFKA=127.0.0.1:9092 frazil validate
    """
    if (folder / "include/frazil/__init__.py").exists():
        raise click.UsageError(
            f"{folder.absolute()} is the checkout of frazil; name a project's folder: frazil init FOLDER"
        )
    files = {name: folder / name for name in FILES}
    written = [name for name, file in files.items() if not file.exists()]
    for name in written:
        files[name].parent.mkdir(parents=True, exist_ok=True)
        files[name].write_text(FILES[name])
    if as_json:
        echo_json({"written": written, "kept": [name for name in FILES if name not in written]})
        return
    for name, file in files.items():
        echo(f"{file}{'' if name in written else ': exists, kept'}")
    streams, read = folder.absolute() / "include" / "streams", streams_folder()
    elsewhere = f" and FRAZIL_STREAMS to {streams} (now it is {read})" if os.environ.get("FRAZIL_STREAMS") else ""
    where = "" if folder == Path() else f" in {folder}"
    echo(
        f"Set FRAZIL_KAFKA to the brokers' address{elsewhere if streams != read else ''}, then run `frazil validate`"
        f"{where}."
    )
