"""That the supervisor gave up: recorded, so that it does so once for each cause and then holds; and read by others."""

from __future__ import annotations

import dataclasses

from frazil import clock
from frazil.home import run_folder
from frazil.host.launcher import Observation
from frazil.host.records import GivenUp, read_notes, write_notes


def confirm_given_up(stream: str, subject: str, *, reason: str, table_fingerprint: str | None) -> None:
    """Record in the stream's run folder what the supervisor gave up on, with the table's fingerprint at that time."""
    folder = run_folder(stream)
    given_up = GivenUp(subject, clock.now_ms(), reason, table_fingerprint)
    write_notes(folder, dataclasses.replace(read_notes(folder), given_up=given_up))


def standing_given_up(stream: str, seen: Observation) -> GivenUp | None:
    """What the supervisor gave up on, on this host, if nothing was started since.

    Raises OSError, ValueError and TypeError for a run folder that cannot be read.
    """
    given_up = read_notes(run_folder(stream)).given_up
    if given_up is None or seen.process.is_alive:
        return None
    return given_up if seen.launch is None or seen.launch.id == given_up.subject else None
