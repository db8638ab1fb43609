"""The quality gates of a table's windows, run before a window is signalled."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from frazil.airflow.dag_ids import partitions_dag_id
from frazil.airflow.data_docs.address import docs_folder, docs_url
from frazil.airflow.spark import SPARK_CONNECTION
from frazil.airflow.untrusted import Store, extra_text
from frazil.errors import SpecError
from frazil.partitions.windows import Window
from frazil.quality.gate import GateRequest, find_suite, run_gates
from frazil.quality.suite import read_suite
from frazil.signals.completion import Assessment, Gate, RunGates
from frazil.table.branches import head_of

log = logging.getLogger(__name__)

GATED = "gated"
"""The store's key for whether the table's suite had expectations when it was last read."""
TIMEOUT_S = 300.0
"""Timeout for one window, in seconds; a window of 1 M rows takes less than a minute."""


def gates_of(expectations: Path | None, table: str, store: Store) -> RunGates | None:
    """Return a function that runs the quality gate of a table's windows; None if the table has no suite."""
    suite = find_suite(expectations, table) if expectations else None
    if suite is not None:
        if store.get(GATED) != (gated := bool(read_suite(suite).content["expectations"])):
            store.set(GATED, gated)
        return partial(_evaluate, suite)
    if expectations is not None and store.get(GATED) is True:
        raise SpecError(
            f"the quality gate of {table}, {expectations / f'{table}.json'}, is gone: no window is signalled without "
            'it. Put the file back. To end the gate, put it back with `"expectations": []`, and remove it after a run '
            f"of {partitions_dag_id(table)}"
        )
    return None


def _evaluate(suite: Path, seen: Assessment, windows: Sequence[Window]) -> Mapping[Window, Gate]:
    head = head_of(seen.table.metadata)
    if head is None:
        return {}
    properties = _spark_properties()
    requests = [
        GateRequest(
            suite=suite,
            catalog=seen.specs[0].table.catalog,
            table=seen.signals.table,
            snapshot_id=head.snapshot_id,
            event_time=seen.specs[0].event_time.column,
            from_us=window.start_us,
            to_us=window.end_us,
            partition=window.key,
            docs=docs_folder(),
            spark=properties,
        )
        for window in windows
    ]
    results = run_gates(requests, timeout_s=TIMEOUT_S * len(windows))
    verdicts = {}
    for window, result in zip(windows, results, strict=True):
        page = docs_url(result.docs)
        said = "meets its suite" if result.passed else "does not meet its suite"
        log.info("%s of %s, %d rows, %s: %s", window, seen.signals.table, result.rows, said, page)
        verdicts[window] = Gate(result.passed, None if result.passed else f"{'; '.join(result.failures)} ({page})")
    return verdicts


def _spark_properties() -> dict[str, str]:
    """Return the Spark properties of the connection, for windows that do not fit into one process's memory."""
    try:
        named = extra_text(Connection.get(SPARK_CONNECTION).extra_dejson, "properties-file")
    except AirflowNotFoundException:
        return {}
    if not named or not Path(named).is_file():
        return {}
    lines = [line.strip() for line in Path(named).read_text().splitlines()]
    pairs = [re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and not line.startswith("#")]
    return {pair[0]: pair[1] for pair in pairs if len(pair) > 1}
