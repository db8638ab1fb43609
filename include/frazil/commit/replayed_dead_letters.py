"""Updates dead letters after a replay: removes those that became rows, and extends the error history of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyroaring import BitMap64

from frazil.commit.row_changes import DeadLetterOffsets, DeadLetterSource, RowChange, choose_dead_letters, offset_spans
from frazil.ingest.contract import StagedFile
from frazil.offsets.spans import TopicPartition
from frazil.table.file_bounds import COORDINATES

MAX_ERROR_CHARACTERS = 1000
Coordinates = tuple[str, int, int]
"""Topic, partition and offset."""
Reason = tuple[str, str]
"""Error class and error text."""


def read_new_errors(table: Table, files: Iterable[StagedFile]) -> dict[Coordinates, Reason]:
    """Return the new error of each dead letter that failed again, from the files that the replay staged for them."""
    columns = [*COORDINATES, "error_class", "error"]
    found: dict[Coordinates, Reason] = {}
    for file in files:
        with table.io.new_input(file.path).open() as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=columns):
                for topic, partition, offset, error_class, error in zip(
                    *(column.to_pylist() for column in batch.columns), strict=True
                ):
                    found[topic, partition, offset] = error_class, error
    return found


def replayed_change(
    stream: str,
    replayed: Mapping[TopicPartition, BitMap64],
    topic_ids: Mapping[str, str],
    failed: Mapping[Coordinates, Reason],
) -> RowChange:
    """Return the change of a stream's dead letters after a replay.

    `replayed` has the offsets that became rows; `failed` has the new errors of the others. `topic_ids` are the ids of
    the replayed topics.
    """
    dead_letters = dead_letters_at(replayed, topic_ids, failed)

    def replace(rows: pa.Table) -> pa.Table:
        again = [failed.get(place) for place in zip(*(rows[name].to_pylist() for name in COORDINATES), strict=True)]
        stays = rows.filter(pa.array([reason is not None for reason in again], pa.bool_()))
        return _add_errors(stays, [reason for reason in again if reason is not None])

    return RowChange(offset_spans(dead_letters), choose_dead_letters(stream, dead_letters), replace)


def dead_letters_at(
    replayed: Mapping[TopicPartition, BitMap64], topic_ids: Mapping[str, str], failed: Iterable[Coordinates] = ()
) -> DeadLetterOffsets:
    """Return the dead letters at the offsets `replayed` and at the coordinates `failed`.

    Includes dead letters without a topic id, which earlier versions wrote.
    """
    offsets: dict[TopicPartition, BitMap64] = {tp: BitMap64(found) for tp, found in replayed.items()}
    for topic, partition, offset in failed:
        offsets.setdefault((topic, partition), BitMap64()).add(offset)
    found: dict[DeadLetterSource, BitMap64] = {}
    for (topic, partition), of in offsets.items():
        if of:
            found |= {(topic, partition, topic_id): of for topic_id in {topic_ids.get(topic), None}}
    return found


def _add_errors(rows: pa.Table, again: list[Reason]) -> pa.Table:
    """Increase the dead letters' replay count by one, and put each new error before the earlier errors."""
    before = zip(rows["error_class"].to_pylist(), rows["error"].to_pylist(), strict=True)
    columns = {
        "replays": [(count or 0) + 1 for count in rows["replays"].to_pylist()],
        "error_class": [error_class for error_class, _ in again],
        "error": [_error_history(now, then) for now, then in zip(again, before, strict=True)],
    }
    for name, values in columns.items():
        field = rows.schema.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), field, pa.array(values, field.type))
    return rows


def _error_history(now: Reason, then: Reason) -> str:
    if now == then or then[1].startswith(f"{now[1]}; before, "):
        return then[1]
    return f"{now[1]}; before, {then[0]}: {then[1]}"[:MAX_ERROR_CHARACTERS]
