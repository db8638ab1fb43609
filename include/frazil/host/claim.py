"""Claims of streams: the claim in a run folder names the Airflow run that supervises the stream, for display."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from frazil.home import run_folder
from frazil.host.json_file import replace_json

CLAIM_FILE = "claim.json"


@dataclass(frozen=True, slots=True)
class Claim:
    """The Airflow run, and the try of its task, that supervises a stream."""

    run_id: str
    try_number: int


def write_claim(stream: str, claim: Claim) -> None:
    replace_json(run_folder(stream) / CLAIM_FILE, dataclasses.asdict(claim))


def read_claim(stream: str) -> Claim | None:
    try:
        return Claim(**json.loads((run_folder(stream) / CLAIM_FILE).read_text()))
    except FileNotFoundError:
        return None
