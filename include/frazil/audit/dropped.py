"""Finds the records in Kafka that the stream's transform drops, by decoding and transforming them again."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from pyiceberg.schema import Schema
from pyroaring import BitMap64

from frazil.commit.marker import BatchKey
from frazil.commit.stream_tables import StreamTables
from frazil.ingest.contract import OffsetRange, StageTask
from frazil.ingest.decode import Decoded
from frazil.ingest.narrow import narrowed
from frazil.ingest.opened import open_decoder, open_reader
from frazil.offsets.spans import Span, TopicPartition
from frazil.spec.model import StreamSpec
from frazil.spec.references import executors_kafka_properties
from frazil.stream.stage_context import stage_context


def dropped_offsets(
    spec: StreamSpec, tables: StreamTables, ranges: Mapping[TopicPartition, Span]
) -> Mapping[TopicPartition, BitMap64]:
    """Return the offsets in these ranges whose records the current transform drops."""
    kafka = executors_kafka_properties(spec, os.environ)
    context = stage_context(spec, tables, BatchKey(0, 0), kafka_properties=kafka, topic_ids={})
    wanted = tuple(OffsetRange(*tp, *span) for tp, span in sorted(ranges.items()) if span[0] < span[1])
    found = defaultdict[TopicPartition, BitMap64](BitMap64)
    if not wanted:
        return found
    decode = open_decoder(context, Schema.model_validate_json(context.main.schema_json))
    with open_reader(context, StageTask(0, wanted)) as reader:
        for chunk in reader:
            tried = narrowed(len(chunk), lambda start, end: decode(chunk.piece(start, end)))  # noqa: B023 - called here
            # A record that raises is a dead letter.
            parts = [part.dropped + start for start, _, part in tried if isinstance(part, Decoded)]
            dropped = np.concatenate(parts) if parts else np.arange(0)
            of_range, offsets = chunk.range_index[dropped], chunk.offsets[dropped]
            for index in np.unique(of_range).tolist():
                tp = (wanted[index].topic, wanted[index].partition)
                found[tp] |= BitMap64(offsets[of_range == index].tolist())
    return found
