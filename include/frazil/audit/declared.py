"""Audits a declared stream, in the way that the stream's mode requires."""

from __future__ import annotations

from functools import partial

from frazil.audit.run import Audit, audit_stream
from frazil.audit.source import ask_kafka
from frazil.commit.opened import read_stream
from frazil.commit.period import Period
from frazil.spec.model import StreamSpec


def audit(spec: StreamSpec, *, window: Period | None, with_source: bool) -> Audit:
    """Audit the commits of a period, or all commits; `with_source` also compares with the records that Kafka still has.

    Raises the errors of `audit_stream`, and of opening the stream.
    """
    tables = read_stream(spec).tables
    if spec.mode == "upsert":
        from frazil.audit.upserts import audit_upserts  # noqa: PLC0415 - staging and merging, which others need not

        return audit_upserts(spec, tables, window=window, with_source=with_source)
    if spec.dedupe is not None:
        found = audit_stream(tables, window=window, drops_repeats=True, replayed_from_source=with_source)
        if not with_source:
            return found
        from frazil.audit.upserts import compared_with_source  # noqa: PLC0415 - as above

        return found.with_findings(compared_with_source(spec, tables, window=window))
    ask = partial(ask_kafka, spec) if with_source else None
    if with_source and spec.transform:
        from frazil.audit.dropped import dropped_offsets  # noqa: PLC0415 - decoding, which others need not

        ask = partial(ask_kafka, spec, dropped=partial(dropped_offsets, spec, tables))
    named = {*spec.route.tables.values()} if spec.route else ()
    return audit_stream(tables, coordinates=spec.coordinates, window=window, ask_kafka=ask, named=named)
