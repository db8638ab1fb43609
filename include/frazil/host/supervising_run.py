"""Records in a run folder which Airflow run supervises the stream."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from frazil.home import run_folder
from frazil.host.json_file import replace_json

_FILE = "claim.json"


@dataclass(frozen=True, slots=True)
class SupervisingRun:
    """The Airflow run, and the try of its task, that supervises a stream."""

    run_id: str
    try_number: int


def write_supervising_run(stream: str, run: SupervisingRun) -> None:
    replace_json(run_folder(stream) / _FILE, dataclasses.asdict(run))


def read_supervising_run(stream: str) -> SupervisingRun | None:
    try:
        return SupervisingRun(**json.loads((run_folder(stream) / _FILE).read_text()))
    except FileNotFoundError:
        return None
