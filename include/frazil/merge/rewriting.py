"""Which data files a merge writes anew: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frazil.merge.contract import How, TableFile

MAX_DELETED_SHARE = 0.2
"""The share of a file's rows that may have left it by delete files: above it, `auto` writes the file anew."""
TIER = 4
"""Files that are no more than so many times as large as the new one join it, once there are `TOGETHER` of them: each
row is then written anew once for each tier, and a partition has few files of each."""
TOGETHER = 4
SMALL_BYTES = 64 * 2**10
"""Files below this size cost readers the same."""
SMALLER_BYTES = 2**20
"""Below this size, proportionally fewer rows may have left: a new data file costs less then, and a delete file costs
readers the same. So a row that leaves is paid for with the same bytes, whatever its file's size."""
ROW_BYTES = 50
"""About the size of a row, where no file tells."""


def rewritten(how: How, leaving: Mapping[TableFile, int], files: Sequence[TableFile], *, new_rows: int) -> set[str]:
    """The paths of the files to write anew. `leaving` counts rows that leave a file, those that have left it included.

    `files` are those of one partition, and `new_rows` come to it.
    """
    if how == "copy-on-write":
        return {file.path for file in leaving}
    if how == "merge-on-read":
        return {file.path for file, rows in leaving.items() if rows == file.records}
    found = {file.path for file, rows in leaving.items() if rows > _may_have_left(file)}
    return found | _joining(files, found, leaving, new_rows)


def _may_have_left(file: TableFile) -> float:
    return MAX_DELETED_SHARE * file.records * min(1.0, file.bytes / SMALLER_BYTES)


def _joining(
    files: Sequence[TableFile], rewritten: set[str], leaving: Mapping[TableFile, int], new_rows: int
) -> set[str]:
    """The small files that join what is written."""
    copied = sum(file.bytes * (1 - leaving[file] / file.records) for file in files if file.path in rewritten)
    size = max(SMALL_BYTES, _bytes(files, new_rows) + copied)
    rest = sorted((file for file in files if file.path not in rewritten), key=lambda file: file.bytes)
    joined: set[str] = set()
    while True:
        tier = [file for file in rest if file.bytes <= TIER * size]
        if len(tier) < TOGETHER:
            return joined
        joined |= {file.path for file in tier}
        size += sum(file.bytes for file in tier)
        rest = rest[len(tier) :]


def _bytes(files: Sequence[TableFile], rows: int) -> float:
    records = sum(file.records for file in files)
    return rows * (sum(file.bytes for file in files) / records if records else ROW_BYTES)
