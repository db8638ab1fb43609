"""The number of sentences that must be read twice may only fall."""

from __future__ import annotations

import json

from tests import prose


def test_no_folder_has_more_prose_findings_than_stored_and_stored_counts_only_fall():
    stored = json.loads(prose.COUNTS.read_text())
    found = prose.counts(prose.findings())

    more = {room: count - stored.get(room, 0) for room, count in found.items() if count > stored.get(room, 0)}
    fewer = {room: count for room, count in stored.items() if found.get(room, 0) < count}
    assert more == {}, "rewrite what `python -m tests.prose FOLDER` lists"
    assert fewer == {}, "well done: lower the counts with `python -m tests.prose --write`"
