"""Compiled: samples the records that have a key which is no field of the schema, so that few are looked at again.

Each key, told apart by where it is and its bytes, is sampled from the first records that have a value for it.
"""

# ruff: noqa: PLR0913, PLR0917, PLR1714 - compiled code: each container costs

from __future__ import annotations

import numpy as np

from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.scan import Octets, loop, white

ON, FLAGGED, SAMPLED, KEYS = range(4)
"""Where the memory says whether to look at all, whether the current record has such a key, whether it is a sample, and
how many keys are told apart. Then come the keys in a hash table: a hash that is not 0, and how often it was seen."""
FIRST_KEY = 4
SLOTS = 4096
MAX_KEYS = SLOTS // 2
"""Keys beyond are not sampled, until those before them are columns."""
SAMPLES = 256
"""Records by key. Of objects and arrays, which may be empty in part, there are more."""
SAMPLES_NESTED = 4096


def memory(*, on: bool) -> Numbers:
    made = np.zeros(FIRST_KEY + 2 * SLOTS if on else FIRST_KEY, np.int64)
    made[ON] = on
    return made


@loop
def look(b: Octets, key: int, end: int, k: int, value: int, behind: int, seen: Numbers) -> None:
    """Note a key at `[key, end)` of container k, whose value begins at `value` in a record that ends at `behind`."""
    first = b[value]
    if first == 110:
        return  # null says nothing
    nested = first == 123 or first == 91
    if nested:
        p = white(b, value + 1, behind)
        if b[p] == 125 or b[p] == 93:
            return
    seen[FLAGGED] = 1
    hashed = np.int64(1469598103934665603) ^ np.int64(k)
    for q in range(key, end):
        hashed = (hashed ^ np.int64(b[q])) * np.int64(1099511628211)
    if hashed == 0:
        hashed = np.int64(1)
    slot = (hashed ^ (hashed >> 29)) & (SLOTS - 1)
    while seen[FIRST_KEY + 2 * slot] != hashed:
        if seen[FIRST_KEY + 2 * slot] == 0:
            if seen[KEYS] >= MAX_KEYS:
                return
            seen[KEYS] += 1
            seen[FIRST_KEY + 2 * slot] = hashed
            break
        slot = (slot + 1) & (SLOTS - 1)
    if seen[FIRST_KEY + 2 * slot + 1] < (SAMPLES_NESTED if nested else SAMPLES):
        seen[FIRST_KEY + 2 * slot + 1] += 1
        seen[SAMPLED] = 1
