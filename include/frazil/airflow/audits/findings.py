"""Stores each stream's last audit, and uncleared findings, in the store of the asset `frazil.health`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from frazil.airflow.untrusted_values import AssetStore, stored_mapping
from frazil.timetext import parse_moment

FINDINGS_KEY = "audits"
"""The store's key for findings; no table has this name."""
LAST_AUDITS_KEY = "last audits"
WITH_KAFKA = "source"
"""Last item of a stored finding if the audit also read Kafka."""
RETENTION = timedelta(days=7)
"""Time after which a finding is dropped if no audit clears it, for example a finding about rows erased on request."""


def read_findings(store: AssetStore) -> dict[str, str]:
    return {stream: entry[2] for stream, entry in stored_mapping(store, FINDINGS_KEY).items() if _is_finding(entry)}


def read_last_audits(store: AssetStore) -> dict[str, str]:
    return {name: text for name, text in stored_mapping(store, LAST_AUDITS_KEY).items() if isinstance(text, str)}


def _audit_text(audit: Mapping[str, Any]) -> str:
    not_compared = audit.get("not-compared") or "not everything was compared"
    result = f"{audit['findings'] or 'no'} findings" + ("" if audit["complete"] else f", but {not_compared}")
    return f"of commits from {audit['from']} to {audit['to']}: {result}"


def store_audits(store: AssetStore, audits: Iterable[Mapping[str, Any]]) -> None:
    """Store the findings in results of `audit_hours`, and remove stored findings that these results clear. A finding is
    cleared when a later audit of the same hours finds nothing, or after a week. An audit that did not compare
    everything clears nothing. An audit without Kafka clears no finding of an audit with Kafka.
    """
    audits = list(audits)
    if audits:
        store.set(LAST_AUDITS_KEY, read_last_audits(store) | {audit["stream"]: _audit_text(audit) for audit in audits})
    stored = {stream: entry for stream, entry in stored_mapping(store, FINDINGS_KEY).items() if _is_finding(entry)}
    findings = dict(stored)
    for audit in audits:
        stream, entry = audit["stream"], stored.get(audit["stream"])
        if audit["findings"]:
            begin, end = audit["from"], audit["to"]
            period = f"{stream}, committed from {begin} to {end}"
            sentence = f"{period}: {audit['findings']} findings. {audit['sentences'][0]}"
            hours = [min(begin, entry[0]), max(end, entry[1])] if entry else [begin, end]
            with_kafka = audit["source"] or (entry is not None and WITH_KAFKA in entry[3:])
            findings[stream] = [*hours, sentence, *([WITH_KAFKA] if with_kafka else [])]
        elif entry and (_clears(audit, entry) or _is_old(entry, audit["to"])):
            del findings[stream]
    if findings != stored:
        store.set(FINDINGS_KEY, findings)


def _clears(audit: Mapping[str, Any], finding: Sequence[str]) -> bool:
    if not audit["complete"] or (WITH_KAFKA in finding[3:] and not audit["source"]):
        return False
    return bool(audit["from"] <= finding[0] and finding[1] <= audit["to"])


def _is_old(finding: Sequence[str], current: str) -> bool:
    return datetime.fromisoformat(current) - datetime.fromisoformat(finding[1]) > RETENTION


def _is_finding(value: Any) -> bool:
    """Whether a stored value, which other users can write, has the format of `store_audits`."""
    if not (isinstance(value, list) and len(value) in {3, 4} and all(isinstance(text, str) for text in value)):
        return False
    try:
        return all(parse_moment(text).tzinfo is not None for text in value[:2])
    except ValueError:
        return False
