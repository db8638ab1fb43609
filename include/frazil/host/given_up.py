"""Giving up is said once: whoever has said it writes that down, and the same state is a hold from then on."""

from __future__ import annotations

import dataclasses

from frazil import clock
from frazil.home import run_folder
from frazil.host.records import GivenUp, read_notes, write_notes


def confirm_given_up(stream: str, subject: str, *, reason: str, table_fingerprint: str | None) -> None:
    """Remember in the stream's run folder what was given up on, and how the table stood then."""
    folder = run_folder(stream)
    given_up = GivenUp(subject, clock.now_ms(), reason, table_fingerprint)
    write_notes(folder, dataclasses.replace(read_notes(folder), given_up=given_up))
