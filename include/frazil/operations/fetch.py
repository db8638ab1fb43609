"""Blocking reads for the page. They raise catalog errors. `frazil.operations.read_cache` limits the wait."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from frazil import clock
from frazil.commit.backfill_records import BackfillMarker, branch_name, open_backfills, read_backfill
from frazil.commit.marker import read_marker
from frazil.commit.open_streams import open_read_only
from frazil.errors import FrazilError, MarkerUnreadable
from frazil.history.objects import read_history
from frazil.history.objects import read_table_history as past_of
from frazil.history.points import TENS_RETENTION_MS
from frazil.maintenance.due import find_due_actions
from frazil.maintenance.health import PartitionFiles
from frazil.maintenance.measure import measure, route_tables
from frazil.maintenance.outcomes import read_outcomes
from frazil.maintenance.partition_files import read_partitions
from frazil.maintenance.tables import MaintainedTable
from frazil.offsets.spans import TopicPartition
from frazil.operations.calendar import (
    SHOWN_PERIODS,
    Calendar,
    build_calendar,
    build_partition_calendar,
    find_complete_end_us,
    find_delay_reasons,
)
from frazil.operations.overview import Windows
from frazil.operations.rates import DayCost, daily_costs
from frazil.operations.stream_actions import ActionState
from frazil.operations.stream_view import TableHistory, build_table_history
from frazil.operations.table_view import Shape, build_shape
from frazil.partitions.completeness import Cursor, complete_until_us, format_time
from frazil.partitions.windows import Window
from frazil.signals.completion import assess_table
from frazil.signals.signal_table import TableSignals
from frazil.spec.model import StreamSpec
from frazil.spec.references import resolve_kafka_properties
from frazil.status.cost import PRICES_VARIABLE, Prices
from frazil.status.state import StreamState
from frazil.status.stream import read_stream_state
from frazil.table.branches import MAIN, head_of
from frazil.table.catalogs import find_table, open_existing_catalog
from frazil.table.landed_offsets import has_coordinates
from frazil.table.tables import load_stream_table

KAFKA_TIMEOUT_S = 5.0
MAX_HISTOGRAM_FILES = 20_000
"""Maximum number of files for which a histogram is read, because it needs every manifest entry."""


def fetch_stream(spec: StreamSpec) -> StreamState:
    return read_stream_state(spec, now_ms=clock.now_ms())


def fetch_windows(specs: Sequence[StreamSpec]) -> Windows | None:
    seen = assess_table(open_existing_catalog(specs[0].table.catalog), specs)
    if seen is None:
        return None
    bound, cursor = complete_until_us(seen.feeds), seen.signals.cursor
    held_us = cursor.held if cursor else frozenset()
    held_keys = sorted(Window(us, cursor.grain).key for us in held_us) if cursor else []
    complete_us = find_complete_end_us(bound, held_us, seen.grain)
    complete = None if complete_us is None else format_time(complete_us)
    through_us = seen.decision.through_us
    following = None if through_us is None else Window.containing(through_us, seen.grain)
    holders = find_delay_reasons(seen.feeds, following, held_keys, now_us=clock.now_ms() * 1000)
    return Windows(seen.grain, complete, seen.decision.reason, tuple(held_keys), holders, seen.describe_delay())


def fetch_history(spec: StreamSpec, *, lookback_ms: int) -> TableHistory | None:
    table = load_stream_table(spec)
    if table is None:
        return None
    try:
        marker = read_marker(table.properties, spec.name)
    except MarkerUnreadable:  # the status reports this
        marker = None
    now_ms = clock.now_ms()
    past = past_of(table, spec.name, since_ms=now_ms - lookback_ms)
    dead_letter_table = find_table(table.catalog, spec.dead_letter_table)
    dead_letters = None if dead_letter_table is None else dead_letter_table.metadata
    return build_table_history(table.metadata, spec, marker, past, dead_letters, now_ms=now_ms, lookback_ms=lookback_ms)


def fetch_daily_costs(spec: StreamSpec) -> tuple[DayCost, ...]:
    """Return the costs of each day. Raises SpecError for invalid prices, FrazilError for an unreadable history."""
    file = os.environ.get(PRICES_VARIABLE)
    past = read_history(spec, since_ms=clock.now_ms() - TENS_RETENTION_MS)
    if past.problem and not past.points:
        raise FrazilError(past.problem)  # the page then keeps the costs that it has
    return daily_costs(past.points, Prices.load(Path(file)) if file else Prices())


def fetch_action_state(spec: StreamSpec) -> ActionState:
    table = open_read_only(spec).tables.main.current()
    marker, backfill = read_marker(table.properties, spec.name), read_backfill(table.properties, spec.name)
    return ActionState(is_read=True, marker=marker, backfill=backfill, coordinates=has_coordinates(table.schema()))


def fetch_routed_names(spec: StreamSpec, specs: Sequence[StreamSpec]) -> dict[str, str]:
    if not spec.sinks.has_routed_tables:
        return {}
    tables = route_tables(open_existing_catalog(spec.table.catalog), spec, specs)
    return {table.identifier: table.name for table in tables}


def fetch_shape(table: MaintainedTable) -> tuple[Shape, Calendar | None] | None:
    catalog, now_ms = open_existing_catalog(table.catalog), clock.now_ms()
    health = measure(catalog, table, now_ms=now_ms)
    if health is None:
        return None
    loaded, target, sizes = catalog.load_table(table.identifier), health.target_file_bytes, array("q")
    partitions, staged = tuple[PartitionFiles, ...](), list[PartitionFiles]()
    if health.data_files <= MAX_HISTOGRAM_FILES:
        partitions = read_partitions(loaded, _manifests(loaded), table, target_bytes=target, sizes=sizes)
        for backfill in _open_backfills(loaded):
            manifests = _manifests(loaded, branch_name(backfill.stream))
            staged += read_partitions(loaded, manifests, table, target_bytes=target)
    answers, past = find_due_actions(health, table.settings), read_outcomes(loaded)
    shape = build_shape(loaded.metadata, health, answers, sizes=sizes, past=past, settings=table.settings)
    return shape, build_partition_calendar(partitions, staged, now_us=now_ms * 1000)


def _manifests(table: Table, branch: str = MAIN) -> list[ManifestFile]:
    head = head_of(table.metadata, branch)
    return head.manifests(table.io) if head else []


def _open_backfills(table: Table) -> list[BackfillMarker]:
    try:
        return [backfill for backfill in open_backfills(table.properties) if backfill.files <= MAX_HISTOGRAM_FILES]
    except MarkerUnreadable:  # the stream's view reports this
        return []


def fetch_calendar(specs: Sequence[StreamSpec]) -> Calendar | None:
    assessment = assess_table(open_existing_catalog(specs[0].table.catalog), specs)
    cursor = assessment.signals.cursor if assessment else None
    if assessment is None or cursor is None:
        return None
    since_us = cursor.through_us - SHOWN_PERIODS[assessment.grain] // timedelta(microseconds=1)
    signals = assessment.signals.newest(from_us=since_us, to_us=cursor.through_us)
    now_us = clock.now_ms() * 1000
    through_us, reason = cursor.through_us, assessment.decision.reason
    return build_calendar(assessment.grain, signals, through_us=through_us, now_us=now_us, waits_for=reason)


def fetch_signal_cursor(spec: StreamSpec) -> Cursor | None:
    return TableSignals.load(open_existing_catalog(spec.table.catalog), spec.table.identifier).cursor


def fetch_end_offsets(spec: StreamSpec) -> Mapping[TopicPartition, int]:
    from frazil.kafka.admin import KafkaAdmin  # librdkafka, which few requests need

    properties = {**resolve_kafka_properties(spec, os.environ), "log_level": "0"}
    with KafkaAdmin(properties, spec.source.reads, timeout_s=KAFKA_TIMEOUT_S) as kafka:
        return kafka.ends(kafka.describe().partitions)
