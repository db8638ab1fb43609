"""Decides which data files a merge rewrites. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frazil.merge.contract import How, TableFile

MAX_DELETED_SHARE = 0.2
"""Maximum share of a file's rows that delete files may remove. Above this share, `auto` rewrites the file."""
TIER = 4
"""Files at most this many times as large as the new file are rewritten with it, if `MIN_JOINED_FILES` or more exist.

So each row is rewritten once per size tier, and a partition has few files of each tier.
"""
MIN_JOINED_FILES = 4
SMALL_BYTES = 64 * 2**10
"""Files below this size all cost readers the same."""
SMALLER_BYTES = 2**20
"""File size below which the allowed share of deleted rows shrinks in proportion.

A small data file costs less to rewrite, but its delete file costs readers as much as any other. With this rule, each
deleted row costs the same number of rewritten bytes for files of any size.
"""
ROW_BYTES = 50
"""The assumed bytes per row if no file shows the actual size."""


def rewritten(how: How, leaving: Mapping[TableFile, int], files: Sequence[TableFile], *, new_rows: int) -> set[str]:
    """Return the paths of the data files to rewrite.

    `leaving` has the number of rows to remove from each file, including rows that delete files already remove. `files`
    are the data files of one partition, which gets `new_rows` rows.
    """
    if how == "copy-on-write":
        return {file.path for file in leaving}
    if how == "merge-on-read":
        return {file.path for file, rows in leaving.items() if rows == file.records}
    found = {file.path for file, rows in leaving.items() if rows > _max_deleted_rows(file)}
    return found | _joining(files, found, leaving, new_rows)


def _max_deleted_rows(file: TableFile) -> float:
    return MAX_DELETED_SHARE * file.records * min(1.0, file.bytes / SMALLER_BYTES)


def _joining(
    files: Sequence[TableFile], rewritten: set[str], leaving: Mapping[TableFile, int], new_rows: int
) -> set[str]:
    """Return the small files that are rewritten together with the new rows."""
    copied = sum(file.bytes * (1 - leaving[file] / file.records) for file in files if file.path in rewritten)
    size = max(SMALL_BYTES, _bytes(files, new_rows) + copied)
    rest = sorted((file for file in files if file.path not in rewritten), key=lambda file: file.bytes)
    joined: set[str] = set()
    while True:
        tier = [file for file in rest if file.bytes <= TIER * size]
        if len(tier) < MIN_JOINED_FILES:
            return joined
        joined |= {file.path for file in tier}
        size += sum(file.bytes for file in tier)
        rest = rest[len(tier) :]


def _bytes(files: Sequence[TableFile], rows: int) -> float:
    records = sum(file.records for file in files)
    return rows * (sum(file.bytes for file in files) / records if records else ROW_BYTES)
