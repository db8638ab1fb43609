"""Samples records with keys outside the schema, in compiled code. A key's samples are the first few records in which
its value is neither null nor empty. Only samples are examined again.
"""

# ruff: noqa: PLR0913, PLR0917, PLR1714 - compiled code: each container costs

from __future__ import annotations

import numpy as np

from frazil.ingest.formats.json.nodes import Numbers
from frazil.ingest.formats.json.scan import Octets, loop, skip_white_space

ON, FLAGGED, SAMPLED, KEYS = range(4)
"""Positions in the memory: whether to search, whether the current record has a new key, whether it is a sample, and the
number of distinct keys. A hash table follows: each key's hash (not 0), and its number of samples.
"""
FIRST_KEY = 4
SLOTS = 4096
MAX_KEYS = SLOTS // 2
"""Maximum number of keys that are sampled at a time."""
MAX_SAMPLES = 256
"""Maximum number of samples per key; `MAX_NESTED_SAMPLES` for objects and arrays."""
MAX_NESTED_SAMPLES = 4096


def allocate_memory(*, on: bool) -> Numbers:
    made = np.zeros(FIRST_KEY + 2 * SLOTS if on else FIRST_KEY, np.int64)
    made[ON] = on
    return made


@loop
def check_key(b: Octets, key: int, end: int, k: int, value: int, behind: int, seen: Numbers) -> None:
    """Check the unknown key `[key, end)` in container k, and decide whether its record is sampled.

    The key's value begins at `value`; the record ends at `behind`.
    """
    first = b[value]
    if first == 110:
        return  # null has no type
    nested = first == 123 or first == 91
    if nested:
        p = skip_white_space(b, value + 1, behind)
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
    if seen[FIRST_KEY + 2 * slot + 1] < (MAX_NESTED_SAMPLES if nested else MAX_SAMPLES):
        seen[FIRST_KEY + 2 * slot + 1] += 1
        seen[SAMPLED] = 1
