"""Audits a declared stream with the checks that fit its mode."""

from __future__ import annotations

from functools import partial

from frazil.audit.findings import Audit
from frazil.audit.kafka_source import find_remaining_offsets
from frazil.audit.stream_audit import audit_stream
from frazil.commit.history import Period
from frazil.commit.open_streams import open_read_only
from frazil.spec.model import StreamSpec


def audit_declared_stream(spec: StreamSpec, *, window: Period | None, with_source: bool) -> Audit:
    """Audit the commits of a period, or all commits. With `with_source`, also compares them with Kafka's records."""
    tables, signals = open_read_only(spec).tables, spec.window is not None
    sinks = spec.sinks
    if sinks.mode.replaces_rows:
        from frazil.audit.upserts import audit_upserts  # imports staging and merging, only if needed

        return audit_upserts(spec, tables, window=window, with_source=with_source)
    if sinks.mode.drops_repeats:
        result = audit_stream(
            tables, window=window, drops_repeats=True, replayed_from_source=with_source, signals=signals
        )
        if not with_source:
            return result
        from frazil.audit.upserts import compare_with_source

        return result.with_findings(compare_with_source(spec, tables, window=window))
    ask = partial(find_remaining_offsets, spec, report_uncommitted=window is None) if with_source else None
    if ask and spec.transform:
        from frazil.audit.source_records import dropped_offsets  # imports decoding, only if needed

        ask = partial(ask, dropped=partial(dropped_offsets, spec, tables))
    assign = None
    if with_source and sinks.has_routed_tables:
        from frazil.audit.source_records import records_by_table

        assign = partial(records_by_table, spec, tables)
    return audit_stream(
        tables,
        coordinates=spec.coordinates,
        window=window,
        find_remaining_offsets=ask,
        candidate_names=sinks.named_tables,
        assign=assign,
        signals=signals,
    )
