"""Chooses the source snapshot that a day's aggregation reads, and records it in the target. Does not need Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.metadata import TableMetadata

from frazil.aggregate.spec import AggregationSpec
from frazil.commit.history import ancestors, ancestors_and_kept
from frazil.errors import SpecError
from frazil.partitions.windows import Window
from frazil.signals.signal import Signal
from frazil.signals.signal_table import load_newest_signals
from frazil.table.catalogs import translate_catalog_errors

log = logging.getLogger(__name__)

NO_REVISIONS = "none"
"""Value of `revisions` for a day with a window that is unsignalled or held by a gate."""


@dataclass(frozen=True, slots=True)
class DayInput:
    """Input of one aggregation run: the source at one snapshot, with the revisions of the day's windows."""

    snapshot_id: int
    sequence_number: int
    revisions: str
    """`1` if all windows have revision 1, JSON of the other windows (`{"2013-12-30T15":2}`), or NO_REVISIONS."""


def load_day_signals(catalog: Catalog, spec: AggregationSpec, day: date) -> tuple[Signal, ...]:
    """Return the newest signal of each signalled window of the day."""
    whole = Window.parse(str(day))
    with translate_catalog_errors(catalog.name):
        return load_newest_signals(catalog, spec.source, from_us=whole.start_us, to_us=whole.end_us)


def is_complete(day: date, signals: Sequence[Signal]) -> bool:
    """Return whether signalled windows cover the whole day, and no gate holds one of them."""
    whole = Window.parse(str(day))
    reached_us = whole.start_us
    for signal in sorted(signals, key=lambda s: s.start_us):
        if signal.start_us > reached_us or not signal.sent:
            return False
        reached_us = max(reached_us, signal.end_us)
    return reached_us >= whole.end_us


def held_windows(signals: Sequence[Signal]) -> list[str]:
    return [signal.partition for signal in signals if not signal.sent]


def choose_input(catalog: Catalog, spec: AggregationSpec, day: date, signals: Sequence[Signal]) -> DayInput:
    """Return the input of a new run.

    For a complete day, reads the newest snapshot that the day's signals name. Reads the current snapshot if the day is
    incomplete, or if the named snapshot has expired or was rolled back. Raises SpecError if the table has no snapshot.
    """
    branch = _source_snapshots(catalog, spec.source)
    current = next(iter(branch))
    if not is_complete(day, signals):
        chosen, revisions, why = current, NO_REVISIONS, "the current snapshot, because not every window was signalled"
    else:
        named = max(signals, key=lambda s: s.sequence_number).snapshot_id
        chosen, revisions, why = named, encode_revisions(signals), "the snapshot that the day's signals name"
        if named not in branch:
            chosen = current
            why = f"the current snapshot, because the signals' snapshot {named} has expired or was rolled back"
    log.info("reading %s of %s at snapshot %d: %s", day, spec.source, chosen, why)
    return DayInput(chosen, branch[chosen], revisions)


def reuse_input(catalog: Catalog, spec: AggregationSpec, day: date, *, snapshot_id: int, revisions: str) -> DayInput:
    """Return the input that an earlier task chose.

    If its snapshot is gone, choose another snapshot for the same revisions. Raises SpecError in this case if the day's
    signals have changed, or if a quality gate holds one of its windows.
    """
    branch = _source_snapshots(catalog, spec.source)
    if snapshot_id in branch:
        return DayInput(snapshot_id, branch[snapshot_id], revisions)
    log.warning("%s no longer has snapshot %d: it has expired or was rolled back", spec.source, snapshot_id)
    signals = load_day_signals(catalog, spec, day)
    chosen = choose_input(catalog, spec, day, signals)
    if chosen.revisions != revisions or held_windows(signals):
        raise SpecError(
            f"{spec.source} no longer has snapshot {snapshot_id}: it has expired or was rolled back. Since the run "
            f"chose it, the signals of {day} have changed, or a gate holds one of the day's windows. To choose another "
            "snapshot, clear the run's first task, or omit --snapshot-id"
        )
    return chosen


def encode_revisions(signals: Sequence[Signal]) -> str:
    """Encode the revisions of the day's windows in the form of `DayInput.revisions`."""
    others = {signal.partition: signal.revision for signal in signals if signal.revision != 1}
    return json.dumps(others, separators=(",", ":")) if others else "1"


def input_summary(spec: AggregationSpec, day: date, day_input: DayInput) -> dict[str, str]:
    """Return the properties with which a snapshot of the target records its input."""
    return {
        "frazil.aggregation": spec.name,
        "frazil.day": str(day),
        "frazil.input-table": spec.source,
        "frazil.input-snapshot-id": str(day_input.snapshot_id),
        "frazil.input-sequence-number": str(day_input.sequence_number),
        "frazil.input-revisions": day_input.revisions,
    }


def find_newer_input(
    spec: AggregationSpec, day: date, day_input: DayInput, *, target: TableMetadata, source: TableMetadata
) -> Mapping[str, str] | None:
    """Return the input of the target's newest run for the day, if it is newer than `day_input`.

    The result has the keys of `input_summary`. Ignores an input that is no longer in the source's history, because the
    source was rolled back or recreated.
    """
    keys = input_summary(spec, day, day_input)
    for snapshot in ancestors(target):
        last = {key: str(snapshot.summary[key] or "") for key in keys} if snapshot.summary else {}
        if (last.get("frazil.aggregation"), last.get("frazil.day")) == (spec.name, str(day)):
            number = int(last["frazil.input-sequence-number"])
            is_newer = number > day_input.sequence_number
            return last if is_newer and is_in_history(source, int(last["frazil.input-snapshot-id"]), number) else None
    return None


def _source_snapshots(catalog: Catalog, source: str) -> dict[int, int]:
    """Return the sequence numbers of the source's snapshots by snapshot id, the current snapshot first."""
    with translate_catalog_errors(catalog.name):
        try:
            metadata = catalog.load_table(source).metadata
        except NoSuchTableError:
            raise SpecError(
                f"table {source} does not exist yet: the first start of its stream's writer creates it"
            ) from None
    branch = _sequence_numbers(metadata)
    if not branch:
        raise SpecError(f"table {source} has no snapshot yet: no rows were ever written to it")
    return branch


def _sequence_numbers(metadata: TableMetadata) -> dict[int, int]:
    """Map the snapshot ids of main's history, and those kept for signals, to sequence numbers."""
    return {s.snapshot_id: s.sequence_number or 0 for s in ancestors_and_kept(metadata)}


def is_in_history(source: TableMetadata, snapshot_id: int, sequence_number: int) -> bool:
    """Return whether the snapshot belongs to the source's current history.

    An expired snapshot counts, unless its sequence number is larger than the numbers of all snapshots.
    """
    if any(s.snapshot_id == snapshot_id for s in source.snapshots):
        return snapshot_id in _sequence_numbers(source)
    return sequence_number <= max((s.sequence_number or 0 for s in source.snapshots), default=0)
