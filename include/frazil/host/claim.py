"""Claims of streams: the claim in a stream's run folder names the try of the Airflow run that supervises the stream."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from frazil.home import run_folder
from frazil.host.json_file import replace_json

CLAIM_FILE = "claim.json"
"""The file in the run folder with the claim."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The Airflow run, and the try of its task, that supervises a stream."""

    run_id: str
    try_number: int


def write_claim(stream: str, claim: Claim) -> None:
    """Record which Airflow run supervises the stream.

    The claim is only for display. The writer's lock prevents a second writer.
    """
    replace_json(run_folder(stream) / CLAIM_FILE, dataclasses.asdict(claim))


def read_claim(stream: str) -> Claim | None:
    """Return the claim on the stream; None if there is none on this host."""
    try:
        return Claim(**json.loads((run_folder(stream) / CLAIM_FILE).read_text()))
    except FileNotFoundError:
        return None
