"""Records that the supervisor gave up, so that it does so once for each cause and holds from then on."""

from __future__ import annotations

import dataclasses

from frazil import clock
from frazil.home import run_folder
from frazil.host.records import GivenUp, read_notes, write_notes


def confirm_given_up(stream: str, subject: str, *, reason: str, table_fingerprint: str | None) -> None:
    """Record in the stream's run folder what the supervisor gave up on, with the table's fingerprint at that time."""
    folder = run_folder(stream)
    given_up = GivenUp(subject, clock.now_ms(), reason, table_fingerprint)
    write_notes(folder, dataclasses.replace(read_notes(folder), given_up=given_up))
