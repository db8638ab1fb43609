"""Checks that each commit attempt of a backfill makes on the table it is about to change. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection

from pyiceberg.table import Table

from frazil.backfill.request import BackfillRequest
from frazil.commit.history import ancestors
from frazil.commit.lane import Lane
from frazil.commit.marker import Marker
from frazil.commit.mode import MERGED
from frazil.commit.rules import files_fit
from frazil.errors import AdoptionRequired, BackfillAbandoned, Fenced, SpecError, StaleBatch, WriterBusy
from frazil.ingest.contract import StagedFile
from frazil.spec.model import StreamSpec

_MOVES = frozenset({"reset", "adopt", "forget"})


def check_begun(spec: StreamSpec, marker: Marker | None) -> Marker:
    """Return the marker: a backfill reads offsets before it. Raises AdoptionRequired if it does not exist."""
    if marker is None:
        raise AdoptionRequired(
            f"stream {spec.name!r} has no marker in table {spec.table.identifier}: a backfill reads what lies "
            f"before it. Start the stream first, with `source.start: latest` if need be: `frazil run {spec.name}`"
        )
    return marker


def check_has_own(spec: StreamSpec, marker: Marker | None) -> Marker:
    """Return the marker, which identifies the stream's own dead letters. Raises AdoptionRequired if there is none."""
    if marker is None:
        raise AdoptionRequired(f"stream {spec.name!r} has no marker: nothing tells which letters are its own")
    return marker


def check_no_replay(lane: Lane | None) -> None:
    """Check that no replay is under way before a backfill begins. Raises WriterBusy."""
    if lane is not None and lane.is_open and lane.replays:
        raise WriterBusy(
            f"dead letters of stream {lane.stream!r} are being replayed ({lane.request['dead-letters']}): wait "
            f"until that has ended. If it was interrupted, `frazil dlq replay {lane.stream}` finishes it first"
        )


def check_no_backfill(lane: Lane | None) -> None:
    """Check that no backfill is under way before dead letters are replayed. Raises WriterBusy."""
    if lane is not None and lane.is_open and not lane.replays:
        raise WriterBusy(
            f"backfill {lane.id} of stream {lane.stream!r} is {lane.state}: finish it, or end it with `frazil "
            f"backfill {lane.stream} --abandon`, before dead letters are replayed"
        )


def taken(lane: Lane | None, request: BackfillRequest) -> Lane:
    """Return the next epoch of the request's backfill, new or already open.

    Raises WriterBusy if another request is under way, and BackfillAbandoned as `check_wanted`.
    """
    check_wanted(lane, request.run)
    epoch = 1 + (lane.epoch if lane else 0)
    if lane is None or not lane.is_open:
        asked = request.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"run"})
        new = Lane(request.stream, f"{request.digest}-{epoch}", asked, request.digest, epoch)
        return dataclasses.replace(new, abandoned_runs=lane.abandoned_runs if lane else ()).owned_by(epoch, request.run)
    if lane.digest != request.digest:
        check_no_replay(lane)
        raise WriterBusy(
            f"backfill {lane.id} of stream {request.stream!r} is {lane.state}, and was requested differently: "
            f"{json.dumps(lane.request)}. Run that one again to finish it, or `frazil backfill {request.stream} "
            "--abandon`"
        )
    return lane.owned_by(epoch, request.run)


def check_wanted(found: Lane | None, run: str | None) -> None:
    """Check that no operator abandoned the backfill of this run; `found` is the stream's last one. Raises
    BackfillAbandoned.
    """
    if found is not None and run is not None and run in found.abandoned_runs:
        raise BackfillAbandoned(_abandoned(f"a person abandoned what run {run} had begun on stream {found.stream!r}"))


def check_not_abandoned(found: Lane | None, lane_id: str) -> None:
    """Check that no operator abandoned this backfill; `found` is the stream's last one. Raises BackfillAbandoned."""
    if found is not None and found.id == lane_id and found.abandoned_by:
        act = "the replay of dead letters" if found.replays else "backfill"
        raise BackfillAbandoned(
            _abandoned(f"{found.abandoned_by} abandoned {act} {found.id} of stream {found.stream!r}")
        )


def _abandoned(what: str) -> str:
    return (
        f"{what}: none of its rows landed, and nothing begins it anew by itself. If it is wanted after all, trigger a "
        "new run, or give the command again"
    )


def check_mine(found: Lane | None, lane: Lane) -> Lane:
    """Check that this epoch still owns the backfill. Raises `Fenced`, or BackfillAbandoned if it was abandoned."""
    check_not_abandoned(found, lane.id)
    if found is None or (found.id, found.epoch) != (lane.id, lane.epoch) or not found.is_open:
        now = "is gone" if found is None else f"is {found.id}, epoch {found.epoch}, {found.state}"
        raise Fenced(replaced(lane, f"the lane {now}"))
    return found


def replaced(lane: Lane, seen: str) -> str:
    """Return the message for a run that another run replaced; `seen` is the evidence."""
    if lane.replays:
        return (
            f"another `{command_of(lane)}` took this replay over, or a person abandoned it: this command "
            f"changes nothing more. If no other command runs, run it again ({seen})"
        )
    return (
        f"epoch {lane.epoch} of backfill {lane.id} of stream {lane.stream!r} was replaced by another run of it: "
        f"{seen}. See `frazil backfill {lane.stream} --status`"
    )


def command_of(lane: Lane) -> str:
    """Return the command that continues a backfill or a replay."""
    return f"frazil {'dlq replay' if lane.replays else 'backfill'} {lane.stream}"


def overtaken(lane: Lane, lost: str) -> str:
    """Return the message for a merge that lost every commit attempt."""
    return (
        f"{lost}. If it is the stream's writer: `frazil pause {lane.stream}`, then `{command_of(lane)}` "
        f"finishes this one, and `frazil resume {lane.stream}` lets the writer go on"
    )


def read_on(lane: Lane) -> str:
    """Return the message for a backfill of a stream with deletes whose writer read on before the publication."""
    return (
        f"the writer of stream {lane.stream!r} read on since backfill {lane.id} was staged, and what it read may "
        f"delete rows that the backfill would bring back. Nothing was published. `frazil pause {lane.stream}`, run the "
        f"backfill again to stage the rest, then `frazil resume {lane.stream}`"
    )


def ended_meanwhile(lane: Lane) -> str:
    """Return the message for a run during whose start another backfill or replay ended."""
    act = "replay of dead letters" if lane.replays else "backfill"
    return (
        f"another {act} of stream {lane.stream!r}, {lane.id}, ended while this command began (it is {lane.state}). "
        "This command changed nothing: run it again"
    )


def ended_before(lane: Lane, last: Lane | None) -> str:
    """Return the message for an operator who abandons a backfill that has ended; `last` is the stream's last one."""
    act = "replay of dead letters" if lane.replays else "backfill"
    now = f"its last one is {last.id}, which is {last.state}" if last else "its table names none any more"
    return (
        f"it was not abandoned: the {act} {lane.id} of stream {lane.stream!r} had ended, and {now}. Nothing was "
        "changed. *What happened* on the page says whether it was published"
    )


def check_fit(table: Table, files: tuple[StagedFile, ...] | list[StagedFile], lane: Lane) -> None:
    """Check that the table still has the schema and partition spec that files were staged for. Raises StaleBatch."""
    if not files_fit(table.metadata, files):
        raise StaleBatch(f"backfill {lane.id} was staged for a schema or partition spec that the table no longer has")


def check_declared(files: Collection[StagedFile], *, merges: bool, lane: Lane) -> None:
    """Check that the files hold changes if, and only if, the declared mode merges. Raises StaleBatch."""
    if any((file.content in MERGED) != merges for file in files):
        raise StaleBatch(f"backfill {lane.id} was staged when the stream was declared with another mode")


def check_no_open_windows(marker: Marker | None, files: Collection[StagedFile], *, table: str) -> None:
    """Check that no rows wait on the stream's open branch, where a merge cannot find them. Raises SpecError."""
    if marker and marker.open_snapshot_id is not None and any(file.content in MERGED for file in files):
        raise SpecError(
            f"stream {marker.stream!r} has rows on its open branch from when it was declared with commit.align: table "
            f"{table} has them after the writer's next batch with mode: upsert. Replay the dead letters then"
        )


def check_not_reset(table: Table, stream: str, audited_at: int, lane: Lane) -> None:
    """Check that the live stream was neither reset nor rolled back since the audit."""
    for snapshot in ancestors(table.metadata):
        if snapshot.snapshot_id == audited_at:
            return
        summary = snapshot.summary
        if summary and summary.get("frazil.stream") == stream and summary.get("frazil.operation") in _MOVES:
            break
    raise StaleBatch(f"the stream was moved, or main went back, since backfill {lane.id} was audited")
