"""What all tasks of a batch, or of a backfill's chunk, have in common: taken from the tables as they are now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from frazil.commit.marker import BatchKey
from frazil.commit.settle import batch_folder
from frazil.commit.stream_tables import StreamTables
from frazil.commit.target import target_table
from frazil.ingest.contract import StageContext
from frazil.spec.model import StreamSpec
from frazil.table.object_store import file_io_properties
from frazil.table.tables import check_stageable


def stage_context(
    spec: StreamSpec,
    tables: StreamTables,
    key: BatchKey,
    *,
    kafka_properties: Mapping[str, str],
    topic_ids: Mapping[str, str],
) -> StageContext:
    """A context that knows no held dead letters and no windows yet; files go to folders of `tables.stream`.

    Raises SchemaIncompatible where others have changed a table so that the declared columns no longer fit it.
    """
    # Afresh: what other people set on the table since the last commit must hold for the next one.
    now = {target: handle.refresh() for target, handle in tables.targets.items()}
    check_stageable(now["main"], now["dead-letters"], spec)
    return StageContext(
        stream=spec.name,
        epoch=key.epoch,
        batch=key.batch,
        kafka=dict(kafka_properties),
        io=file_io_properties(now["main"].io.properties),
        format=spec.source.format,
        event_time_column=spec.event_time.column,
        event_time_unit=spec.event_time.unit,
        coordinates=spec.coordinates,
        targets={
            target: target_table(table, folder=batch_folder(table, tables.stream, key)) for target, table in now.items()
        },
        topic_ids=dict(topic_ids),
        max_future_us=spec.watermark.max_future // timedelta(microseconds=1),
    )
