"""Which try of which Airflow task supervises a stream now: the last one to begin says so in the run folder."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from frazil.home import run_folder
from frazil.host.json_file import replace_json

CLAIM_FILE = "claim.json"


@dataclass(frozen=True, slots=True)
class Claim:
    run_id: str
    try_number: int


def write_claim(stream: str, claim: Claim) -> None:
    """Say who supervises from here on. It is information, not a lock: the lock is the writer's."""
    replace_json(run_folder(stream) / CLAIM_FILE, dataclasses.asdict(claim))


def read_claim(stream: str) -> Claim | None:
    """Who supervises; None where nobody said so on this host."""
    try:
        return Claim(**json.loads((run_folder(stream) / CLAIM_FILE).read_text()))
    except FileNotFoundError:
        return None
