"""Checks that each commit attempt of a backfill makes on the table that it is about to change. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection

from pyiceberg.table import Table

from frazil.backfill.request import BackfillRequest
from frazil.commit.backfill_marker import BackfillMarker
from frazil.commit.history import ancestors
from frazil.commit.marker import Marker
from frazil.commit.mode import MERGED
from frazil.commit.rules import files_fit
from frazil.errors import AdoptionRequired, BackfillAbandoned, Fenced, SpecError, StaleBatch, WriterBusy
from frazil.ingest.contract import StagedFile
from frazil.spec.model import StreamSpec

_POSITION_CHANGES = frozenset({"reset", "adopt", "forget"})


def check_begun(spec: StreamSpec, marker: Marker | None) -> Marker:
    """Return the marker, because a backfill reads offsets before it. Raises AdoptionRequired if the marker does not
    exist.
    """
    if marker is None:
        raise AdoptionRequired(
            f"stream {spec.name!r} has no marker in table {spec.table.identifier}: a backfill reads what lies "
            f"before it. Start the stream first, with `source.start: latest` if need be: `frazil run {spec.name}`"
        )
    return marker


def check_has_own(spec: StreamSpec, marker: Marker | None) -> Marker:
    """Return the marker, which identifies the stream's own dead letters.

    Raises AdoptionRequired if the marker does not exist.
    """
    if marker is None:
        raise AdoptionRequired(f"stream {spec.name!r} has no marker: nothing tells which dead letters are its own")
    return marker


def check_no_replay(backfill: BackfillMarker | None) -> None:
    """Check that no replay is under way before a backfill begins. Raises WriterBusy."""
    if backfill is not None and backfill.is_open and backfill.replays:
        raise WriterBusy(
            f"dead letters of stream {backfill.stream!r} are being replayed ({backfill.request['dead-letters']}): wait "
            f"until that has ended. If it was interrupted, `frazil dlq replay {backfill.stream}` finishes it first"
        )


def check_no_backfill(backfill: BackfillMarker | None) -> None:
    """Check that no backfill is under way before dead letters are replayed. Raises WriterBusy."""
    if backfill is not None and backfill.is_open and not backfill.replays:
        raise WriterBusy(
            f"backfill {backfill.id} of stream {backfill.stream!r} is {backfill.state}: finish it, or end it with "
            "`frazil "
            f"backfill {backfill.stream} --abandon`, before dead letters are replayed"
        )


def taken(backfill: BackfillMarker | None, request: BackfillRequest) -> BackfillMarker:
    """Return the request's backfill, new or already open, in its next epoch.

    Raises WriterBusy if a backfill for another request is under way, and BackfillAbandoned as `check_wanted` does.
    """
    check_wanted(backfill, request.run)
    epoch = 1 + (backfill.epoch if backfill else 0)
    if backfill is None or not backfill.is_open:
        wanted = request.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"run"})
        new = BackfillMarker(request.stream, f"{request.digest}-{epoch}", wanted, request.digest, epoch)
        return dataclasses.replace(new, abandoned_runs=backfill.abandoned_runs if backfill else ()).owned_by(
            epoch, request.run
        )
    if backfill.digest != request.digest:
        check_no_replay(backfill)
        raise WriterBusy(
            f"backfill {backfill.id} of stream {request.stream!r} is {backfill.state}, and was requested differently: "
            f"{json.dumps(backfill.request)}. Run that one again to finish it, or `frazil backfill {request.stream} "
            "--abandon`"
        )
    return backfill.owned_by(epoch, request.run)


def check_wanted(found: BackfillMarker | None, run: str | None) -> None:
    """Check that no operator abandoned the backfill of this run. Raises BackfillAbandoned.

    `found` is the stream's last backfill.
    """
    if found is not None and run is not None and run in found.abandoned_runs:
        raise BackfillAbandoned(
            _abandoned(f"an operator abandoned what run {run} had begun on stream {found.stream!r}")
        )


def check_not_abandoned(found: BackfillMarker | None, backfill_id: str) -> None:
    """Check that no operator abandoned the backfill with this id. Raises BackfillAbandoned.

    `found` is the stream's last backfill.
    """
    if found is not None and found.id == backfill_id and found.abandoned_by:
        operation = "the replay of dead letters" if found.replays else "backfill"
        raise BackfillAbandoned(
            _abandoned(f"{found.abandoned_by} abandoned {operation} {found.id} of stream {found.stream!r}")
        )


def _abandoned(what: str) -> str:
    return (
        f"{what}: none of its rows landed, and nothing begins it again by itself. If it is wanted after all, trigger a "
        "new run, or give the command again"
    )


def check_mine(found: BackfillMarker | None, backfill: BackfillMarker) -> BackfillMarker:
    """Check that this epoch still owns the backfill. Raises `Fenced`, or BackfillAbandoned if an operator abandoned
    it.
    """
    check_not_abandoned(found, backfill.id)
    if found is None or (found.id, found.epoch) != (backfill.id, backfill.epoch) or not found.is_open:
        now = "is gone" if found is None else f"is {found.id}, epoch {found.epoch}, {found.state}"
        raise Fenced(replaced(backfill, f"the lane {now}"))
    return found


def replaced(backfill: BackfillMarker, seen: str) -> str:
    """Return the message for a run that another run replaced; `seen` is the evidence."""
    if backfill.replays:
        return (
            f"another `{command_of(backfill)}` took this replay over, or a person abandoned it: this command "
            f"changes nothing more. If no other command runs, run it again ({seen})"
        )
    return (
        f"epoch {backfill.epoch} of backfill {backfill.id} of stream {backfill.stream!r} was replaced by another run "
        "of it: "
        f"{seen}. See `frazil backfill {backfill.stream} --status`"
    )


def command_of(backfill: BackfillMarker) -> str:
    """Return the command that continues a backfill or a replay."""
    return f"frazil {'dlq replay' if backfill.replays else 'backfill'} {backfill.stream}"


def overtaken(backfill: BackfillMarker, lost: str) -> str:
    """Return the message for a merge that lost every commit attempt."""
    return (
        f"{lost}. If it is the stream's writer: `frazil pause {backfill.stream}`, then `{command_of(backfill)}` "
        f"finishes this one, and `frazil resume {backfill.stream}` continues the writer"
    )


def read_on(backfill: BackfillMarker) -> str:
    """Return the message for a backfill of a stream with deletes whose writer read on before the publication."""
    return (
        f"the writer of stream {backfill.stream!r} read on since backfill {backfill.id} was staged, and what it read "
        "may delete rows that the backfill would bring back. Nothing was published. `frazil pause "
        f"{backfill.stream}`, run the backfill again to stage the rest, then `frazil resume {backfill.stream}`"
    )


def ended_meanwhile(backfill: BackfillMarker) -> str:
    """Return the message for a run during whose start another backfill or replay ended."""
    operation = "replay of dead letters" if backfill.replays else "backfill"
    return (
        f"another {operation} of stream {backfill.stream!r}, {backfill.id}, ended while this command began (it is "
        f"{backfill.state}). "
        "This command changed nothing: run it again"
    )


def ended_before(backfill: BackfillMarker, last: BackfillMarker | None) -> str:
    """Return the message for an operator who abandons a backfill that has ended; `last` is the stream's last
    backfill.
    """
    operation = "replay of dead letters" if backfill.replays else "backfill"
    now = f"its last one is {last.id}, which is {last.state}" if last else "its table no longer names one"
    return (
        f"it was not abandoned: the {operation} {backfill.id} of stream {backfill.stream!r} had ended, and {now}. "
        "Nothing was changed. *What happened* on the page says whether it was published"
    )


def check_fit(table: Table, files: tuple[StagedFile, ...] | list[StagedFile], backfill: BackfillMarker) -> None:
    """Check that the table still has the schema and partition spec that files were staged for. Raises StaleBatch."""
    if not files_fit(table.metadata, files):
        raise StaleBatch(
            f"backfill {backfill.id} was staged for a schema or partition spec that the table no longer has"
        )


def check_declared(files: Collection[StagedFile], *, merges: bool, backfill: BackfillMarker) -> None:
    """Check that the files have changes if, and only if, the declared mode merges. Raises StaleBatch."""
    if any((file.content in MERGED) != merges for file in files):
        raise StaleBatch(f"backfill {backfill.id} was staged when the stream was declared with another mode")


def check_no_open_windows(marker: Marker | None, files: Collection[StagedFile], *, table: str) -> None:
    """Check that no rows wait on the stream's open branch, where a merge cannot find them. Raises SpecError."""
    if marker and marker.open_snapshot_id is not None and any(file.content in MERGED for file in files):
        raise SpecError(
            f"stream {marker.stream!r} has rows on its open branch from when it was declared with commit.align: table "
            f"{table} has them after the writer's next batch with mode: upsert. Replay the dead letters then"
        )


def check_not_reset(table: Table, stream: str, audited_at: int, backfill: BackfillMarker) -> None:
    """Check that the live stream was neither reset nor rolled back since the audit. Raises StaleBatch."""
    for snapshot in ancestors(table.metadata):
        if snapshot.snapshot_id == audited_at:
            return
        summary = snapshot.summary
        if summary and summary.get("frazil.stream") == stream and summary.get("frazil.operation") in _POSITION_CHANGES:
            break
    raise StaleBatch(f"the stream was moved, or main went back, since backfill {backfill.id} was audited")
