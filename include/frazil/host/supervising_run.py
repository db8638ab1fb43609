"""Records which Airflow run supervises a stream, and whether the supervisor gave up on the stream.

With this record, a supervisor gives up only once for each cause, and other processes can show the cause. The failing
task may run on another host. Therefore the supervisor first announces the failure in the run folder, and then informs
Airflow. The announcement is confirmed when a later Airflow run supervises the stream.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from frazil import clock
from frazil.home import run_folder
from frazil.host.launcher import Observation
from frazil.host.records import GivenUp, read_notes, write_notes
from frazil.json_files import read_json, replace_json
from frazil.typed_json import decode

_FILE = "claim.json"


@dataclass(frozen=True, slots=True)
class SupervisingRun:
    run_id: str
    try_number: int


def write_supervising_run(stream: str, run_id: str, try_number: int) -> None:
    replace_json(run_folder(stream) / _FILE, {"run_id": run_id, "try_number": try_number})


def read_supervising_run(stream: str) -> SupervisingRun | None:
    try:
        return decode((run_folder(stream) / _FILE).read_bytes(), SupervisingRun)
    except FileNotFoundError:
        return None


ANNOUNCED_FILE = "giving-up.json"


def confirm_given_up(stream: str, subject: str, *, reason: str, table_fingerprint: str | None) -> None:
    _confirm(stream, GivenUp(subject, clock.now_ms(), reason, table_fingerprint))


def announce_given_up(stream: str, subject: str, *, run_id: str, reason: str, table_fingerprint: str | None) -> None:
    """Record that the supervisor gave up. This is confirmed later, because the message to Airflow may be lost."""
    given_up = GivenUp(subject, clock.now_ms(), reason, table_fingerprint)
    replace_json(run_folder(stream) / ANNOUNCED_FILE, {"run_id": run_id, "given_up": dataclasses.asdict(given_up)})


def read_announcement(stream: str, *, run_id: str) -> GivenUp | None:
    try:
        announced = read_json(run_folder(stream) / ANNOUNCED_FILE)
        return GivenUp(**announced["given_up"]) if announced and announced["run_id"] == run_id else None
    except (ValueError, TypeError, KeyError):
        return None


def confirm_announcement(stream: str, *, run_id: str) -> None:
    """Confirm and remove an earlier run's announcement. `run_id` is the run that supervises now."""
    path = run_folder(stream) / ANNOUNCED_FILE
    try:
        announced = read_json(path)
        if announced is None or announced["run_id"] == run_id:
            return
        given_up = GivenUp(**announced["given_up"])
    except (ValueError, TypeError, KeyError):  # incomplete, or from another version: the supervisor will give up again
        path.unlink(missing_ok=True)
        return
    stored = read_notes(run_folder(stream)).given_up
    if stored is None or stored.at_ms < given_up.at_ms:
        _confirm(stream, given_up)
    path.unlink(missing_ok=True)


def _confirm(stream: str, given_up: GivenUp) -> None:
    folder = run_folder(stream)
    write_notes(folder, dataclasses.replace(read_notes(folder), given_up=given_up))


def read_active_given_up(stream: str, observation: Observation) -> GivenUp | None:
    """Return the record that the supervisor gave up; None if a writer has started here since."""
    given_up = read_notes(run_folder(stream)).given_up
    if given_up is None or observation.process.is_alive:
        return None
    return given_up if observation.launch is None or observation.launch.id == given_up.subject else None
