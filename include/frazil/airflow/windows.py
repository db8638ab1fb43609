"""What the tasks of a table's partition Dag do, in their own process: PyIceberg alone, no Spark.

The row in `frazil.signals` makes a signal happen once. An event that was lost between the row and Airflow is found
missing among Airflow's own events, and sent then; one that is there is not sent twice, whoever repeats a task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException

from frazil.airflow.assets import partition_asset, reopened_asset
from frazil.airflow.gates import gates_of
from frazil.commit.completion import look, signal
from frazil.commit.signal import Signal, State
from frazil.commit.signals import TableSignals
from frazil.partitions.completeness import moment
from frazil.spec.load import streams_of
from frazil.table.catalogs import load_catalog

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

SENT_TO = "frazil.sent-to"
"""In Airflow's store of an asset: the number of the signal up to which all are among Airflow's events."""
TOLD_TO = "frazil.told-to"
"""And of the first asset: the number of the signal up to which people were told of the windows that gates hold."""
MOST_JUDGED = 12
"""Windows of one look where a quality gate judges them, one after the other; the next look has the next."""
MOST_AT_ONCE = 100
"""Events of one task: each carries the facts of all. What is over is sent by the next run."""
CLOCKS_APART = timedelta(days=1)
"""How far the clocks of a worker and of Airflow's server may be apart, when the events of a signal are looked for."""


def begin(table: str, streams: Path, context: Context) -> tuple[int, list[str]]:
    """The number of the table's last signal, and the tasks that have to send what Airflow lacks."""
    signals = _signals(table, streams)
    for name, asset in _assets(table).items():
        store = context["asset_state_store"][asset]
        # Before the first signal: an Airflow that meets a table is told of nothing that is older.
        for key in (SENT_TO, TOLD_TO) if name == "complete" else (SENT_TO,):
            if store.get(key) is None:
                store.set(key, signals.number)
    return signals.number, _following(signals, context)


def ready(table: str, streams: Path, *, after: int) -> tuple[bool, str]:
    """Whether something is complete, or was signalled after a number; and what the next window waits for.

    Metadata alone is read. Raises what `look` raises.
    """
    specs = streams_of(streams, table)
    seen = look(load_catalog(specs[0].table.catalog), specs)
    if seen is None:
        return False, f"there is no table {table} yet: its writer never ran"
    first = seen.signals.cursor is None and seen.cursor is not None
    return bool(seen.decision.windows) or first or seen.signals.number > after, seen.decision.reason


def act(table: str, streams: Path, context: Context, *, expectations: Path | None = None) -> list[str]:
    """Signal what is complete; the tasks to go on with: `complete`, `reopened`, `held`.

    Raises what `look` and `signal` raise.
    """
    specs = streams_of(streams, table)
    catalog = load_catalog(specs[0].table.catalog)
    gates = gates_of(expectations, table)
    seen = look(catalog, specs, **({"most": MOST_JUDGED} if gates else {}))
    if seen is None:
        return []
    made = signal(catalog, seen, clock_ms=time.time_ns() // 1_000_000, gates=gates)
    for one in made:
        log.log(logging.INFO if one.sent else logging.ERROR, "%s", _told(one))
    log.info("%s: %s", table, seen.decision.reason)
    return _following(TableSignals.load(catalog, table), context)


def send(table: str, streams: Path, name: str, context: Context) -> None:
    """Send the events that Airflow lacks. Raises AirflowSkipException where it lacks none: an event would go out."""
    asset = _assets(table)[name]
    unsent = _unsent(_signals(table, streams), asset, context)[:MOST_AT_ONCE]
    if not unsent:
        raise AirflowSkipException(f"Airflow has every event of the asset {asset.name}")
    outlet = context["outlet_events"][asset]
    outlet.add_partitions([s.partition for s in unsent])
    outlet.extra = {s.partition: facts(s) for s in unsent}


def held(table: str, streams: Path, context: Context) -> list[Signal]:
    """The windows of a table that gates hold; whoever asks tells people of them."""
    signals = _signals(table, streams)
    starts = signals.cursor.held if signals.cursor else frozenset()
    newest = signals.newest(from_us=min(starts), to_us=max(starts) + 1) if starts else {}
    context["asset_state_store"][partition_asset(table)].set(TOLD_TO, signals.number)
    return [s for s in newest.values() if not s.sent]


def facts(s: Signal) -> dict[str, Any]:
    """What an event's extra says of its partition, by partition key."""
    return {
        "revision": s.revision,
        "rows": s.rows,
        "dead_letters": s.dead_letters,
        "late_rows": s.late_rows,
        "watermark": moment(s.watermark_us),
        "snapshot_id": s.snapshot_id,
        "sequence_number": s.sequence_number,
        "number": s.number,
        **({"note": s.note} if s.note else {}),
    }


def to_send(signals: Iterable[Signal], sent: Collection[int], *, reopened: bool) -> list[Signal]:
    """The signals of one asset that Airflow lacks, by number: of each window the newest, for one key has one event.

    `sent` are the numbers of the signals among Airflow's events. What was asked for again goes to the first asset
    whatever its revision, for its consumers are those that missed it.
    """
    newest = {
        s.partition: s
        for s in sorted(signals, key=lambda s: s.number)
        if s.sent and (s.revision > 1 and s.state is not State.AGAIN) == reopened
    }
    return [s for s in newest.values() if s.number not in sent]


def _signals(table: str, streams: Path) -> TableSignals:
    return TableSignals.load(load_catalog(streams_of(streams, table)[0].table.catalog), table)


def _assets(table: str) -> dict[str, Asset]:
    return {"complete": partition_asset(table), "reopened": reopened_asset(table)}


def _following(signals: TableSignals, context: Context) -> list[str]:
    """The tasks that have something to send or to tell; also what an earlier run left undone."""
    unsent = [name for name, asset in _assets(signals.table).items() if _unsent(signals, asset, context)]
    told_to: Any = context["asset_state_store"][partition_asset(signals.table)].get(TOLD_TO, 0)
    untold = any(not s.sent for s in signals.after(told_to))
    return [*unsent, *(["held"] if untold else [])]


def _unsent(signals: TableSignals, asset: Asset, context: Context) -> list[Signal]:
    """What Airflow lacks of an asset's signals; where it lacks nothing, the next look begins after them."""
    store = context["asset_state_store"][asset]
    sent_to: Any = store.get(SENT_TO, 0)
    new = signals.after(sent_to)
    if not new:
        return []
    reopened = asset == reopened_asset(signals.table)
    since = datetime.fromtimestamp(min(s.signalled_at_ms for s in new) / 1000, UTC) - CLOCKS_APART
    events: Any = context["inlet_events"][asset].after(since.isoformat())
    facts_sent: list[dict[str, Any]] = [fact for e in events for fact in (e.extra or {}).values()]
    sent = {int(fact["number"]) for fact in facts_sent if "number" in fact}
    missing = to_send(new, sent, reopened=reopened)
    if not missing:
        store.set(SENT_TO, signals.number)
    return missing


def _told(s: Signal) -> str:
    what = "is held by its quality gate" if not s.sent else "is complete" if s.revision == 1 else "was reopened"
    return (
        f"{s.table} {s.partition} {what}: revision {s.revision}, {s.rows} rows, {s.late_rows} of them late, up to "
        f"{s.dead_letters} dead letters, snapshot {s.snapshot_id}" + (f"; {s.note}" if s.note else "")
    )
