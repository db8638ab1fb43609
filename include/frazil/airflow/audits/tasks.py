"""The code of the audit tasks, which need PyIceberg but not Spark."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from airflow.sdk.exceptions import AirflowSkipException

from frazil.airflow.declared_streams import find_declared_stream
from frazil.audit.declared_stream import audit_declared_stream
from frazil.audit.findings import Audit, FindingKind
from frazil.commit.history import Period, complete_hours
from frazil.commit.open_streams import explain_lost_table
from frazil.errors import AdoptionRequired
from frazil.spec.model import StreamSpec
from frazil.table.parallel import find_failures, read_in_parallel
from frazil.table.tables import load_stream_table

log = logging.getLogger(__name__)

MAX_LISTED_FINDINGS = 50
"""Maximum number of findings in a result, to limit the load on Airflow's database."""

AUDIT_TIMEOUT = timedelta(minutes=20)
"""Time limit of a stream's audit in the parallel task; a separate task audits a slower stream."""

AuditJson = dict[str, Any]
"""One audit as JSON. `complete` says whether it compared everything; `sentences` describe the first findings."""


class AuditResults(NamedTuple):
    failing: list[str]
    """Streams that have findings, or whose audit failed."""
    audits: list[AuditJson]


def audit_all(
    streams: Sequence[str], folder: Path, moment: datetime, *, hours: int = 1, with_source: bool = False
) -> AuditResults:
    """Audit the streams. Raises FrazilError if all of several audits fail, because a common cause is likely."""

    def audit_started_stream(stream: str) -> AuditJson | None:
        try:
            return audit_hours(stream, folder, moment, hours=hours, with_source=with_source)
        except AirflowSkipException as not_begun:
            log.info("%s: %s", stream, not_begun)
            return None

    results = read_in_parallel(streams, audit_started_stream, timeout_s=AUDIT_TIMEOUT.total_seconds())
    failed = find_failures(results, "the audit failed", "none of {} streams could be audited")
    audits = [answer for answer in results.values() if isinstance(answer, dict)]
    with_findings = {audited["stream"] for audited in audits if audited["findings"]}
    failing = [stream for stream in results if stream in failed or stream in with_findings]
    log.info("%d of %d streams have findings or failed: %s", len(failing), len(results), ", ".join(failing) or "none")
    return AuditResults(failing, audits)


def audit_hours(
    stream: str, streams: Path, moment: datetime, *, hours: int = 1, with_source: bool = False
) -> AuditJson:
    """Audit the complete hours before `moment`. Raises AirflowSkipException before the stream's first commit."""
    spec = find_declared_stream(streams, stream)
    window = complete_hours(moment, hours)
    result = _audit(spec, window, with_source=with_source)
    audits = {
        "stream": stream,
        "from": _iso(window.from_ms),
        "to": _iso(window.to_ms),
        "source": with_source,
        "complete": result.complete,
        "not-compared": next((f.sentence for f in result.findings if f.kind is FindingKind.NOT_COMPARED), None),
        "findings": len(result.errors),
        "sentences": [f"{f.where}: {f.sentence}" for f in result.errors[:MAX_LISTED_FINDINGS]],
    }
    _log_findings(result, audits)
    return audits


def _audit(spec: StreamSpec, window: Period, *, with_source: bool) -> Audit:
    if load_stream_table(spec) is None and explain_lost_table(spec, None) is None:
        text = f"stream {spec.name!r} has no table {spec.table.identifier} yet: its writer has not committed"
        raise AirflowSkipException(text)
    try:
        return audit_declared_stream(spec, window=window, with_source=with_source)
    except AdoptionRequired as not_begun:
        raise AirflowSkipException(str(not_begun)) from not_begun


def _log_findings(result: Audit, audit: AuditJson) -> None:
    for finding in result.findings:
        is_open = finding.kind is FindingKind.NOT_COMPARED
        level = logging.ERROR if finding.kind.is_wrong else logging.WARNING if is_open else logging.INFO
        log.log(level, "%s: %s", finding.where, finding.sentence)
    log.info(
        "%s, %s to %s: %d batches, %d rows, %d dead letters, %d findings%s",
        audit["stream"], audit["from"], audit["to"], result.batches, sum(p.rows for p in result.partitions),
        sum(p.dead_letters for p in result.partitions), audit["findings"],
        "" if result.complete else "; not everything was compared",
    )  # fmt: skip


def _iso(ms: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat()
