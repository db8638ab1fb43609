"""A stream of a test world, with the history that its writers, supervisor, gate and maintenance have left."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate

from frazil.backfill.commit import BackfillCommitter
from frazil.backfill.request import parse_request
from frazil.commit.dead_letter_counts import Reason
from frazil.commit.journal import NO_DEAD_LETTERS, BatchCost, Journal
from frazil.commit.marker import BatchKey
from frazil.commit.settle import SettleResult
from frazil.commit.snapshot import BaseManifests, SnapshotWriter
from frazil.commit.sweep import batch_folder
from frazil.events import BatchCommitted, EpochBegan, Event, LagMeasured, StallBegan, StreamEvent
from frazil.history.objects import HistoryStore
from frazil.history.points import EventKind, HistoryEvent
from frazil.history.recorder import Recorder, SupervisionRecorder
from frazil.home import run_folder
from frazil.host.heartbeat import Heartbeat, Phase, Stall
from frazil.host.lock import LOCK_FILE
from frazil.host.processes import identify_process
from frazil.host.records import ExitRecord, Launch, LaunchKind, ProcessMark, append_exit
from frazil.ingest.changes import CHANGE, UPSERT
from frazil.ingest.contract import RangeProgress
from frazil.json_files import replace_json
from frazil.maintenance.outcomes import Ending, PastOutcome, store_outcomes
from frazil.partitions.windows import Grain, Window
from frazil.signals.completion import Assessment, GateOutcome, assess_table, release_window, signal_windows
from frazil.table.branches import head_of
from frazil.table.catalogs import load_catalog
from tests.made_batches import EventTimes, MadeStream

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


@dataclass
class MadeHistory:
    """One stream with about one batch per minute."""

    made: MadeStream
    read: list[int]
    """The next offset, by partition."""
    at_ms: int
    heartbeats: Callable[[Callable[[int], None]], None]
    waits: Mapping[int, int] = field(default_factory=dict)
    """Number of unread records in Kafka, by partition."""

    def __post_init__(self) -> None:
        self.spec, self.name = self.made.spec, self.made.spec.name
        self.recorder = Recorder(self.name, interval_ms=MINUTE_MS)
        committer = self.made.begin()
        self.record(EpochBegan(committer.epoch, self.marker, SettleResult()))

    @property
    def marker(self) -> Any:
        return self.made.tables.marker()

    def record(self, what: StreamEvent) -> None:
        self.recorder.take(Event(self.name, self.at_ms, what))

    def batch(  # noqa: PLR0913 - keywords, each with a default
        self,
        counts: Sequence[int],
        *,
        hours: float = 1 / 60,
        ago_hours: int = 0,
        behind: Mapping[int, int] | None = None,
        bad: Mapping[str, int] | None = None,
        lag: int = 0,
        seconds: float = 1.2,
        every: int = 1,
    ) -> None:
        """Land the batch of one minute, or of `every` minutes.

        The rows' event times are in the `hours` before the batch, or before the middle of the hour `ago_hours` ago.
        `behind` says how many hours a partition's newest event time is behind. `bad` are dead letters by error class.
        """
        self.at_ms += every * MINUTE_MS
        self.made.now_ms = self.at_ms
        ranges = {p: (self.read[p], self.read[p] + n) for p, n in enumerate(counts)}
        rejected = sum((bad or {}).values())
        middle_us = Grain.HOUR.floor(self.at_ms * 1000) + Grain.HOUR.us // 2 - ago_hours * Grain.HOUR.us
        until_us = middle_us if ago_hours else self.at_ms * 1000
        rows = sum(counts) - rejected
        times = np.linspace(until_us - hours * HOUR_MS * 1000, until_us, rows, endpoint=False).astype(np.int64)
        self.made.columns = partial(_columns, times=times, keys=700 if self.spec.mode == "upsert" else None)
        newest = {p: self.at_ms * 1000 - (behind or {}).get(p, 0) * HOUR_MS * 1000 for p, n in enumerate(counts) if n}
        place = f"{self.made.topic}[0]@{self.read[0]}"
        marker = self.made.land(
            ranges,
            rejected={0: range(self.read[0], self.read[0] + rejected)} if rejected else None,
            times=EventTimes(newest, Counter((times // Grain.HOUR.us * Grain.HOUR.us).tolist())),
            reasons={name: Reason(count, (place,)) for name, count in (bad or {}).items()},
        )
        self.read = [end for _, end in ranges.values()]
        reported = head_of(self.made.tables.main.current().metadata).summary.additional_properties  # type: ignore[union-attr]
        files, size = int(reported.get("added-data-files", 0)), int(reported.get("added-files-size", 0))
        unread = {(self.made.topic, p): n for p, n in self.waits.items()}
        self.record(LagMeasured(lag, unread, every * MINUTE_MS if lag else 0, max(0, int(seconds * 1250) - MINUTE_MS)))
        cost = BatchCost(int(400 * seconds), writes=6 + files, reads=3)
        self.record(BatchCommitted(marker.key, marker, rows, rejected, files, seconds, seconds / 4, size, cost=cost))

    def minutes(self, count: int, each: Callable[[int], Sequence[int]], **more: Any) -> None:
        for minute in range(count):
            self.batch(each(minute), **more)

    def compacted_between(self, count: int, each: Callable[[int], Sequence[int]]) -> None:
        """Add `count` minutes, with a compaction and the table's other maintenance in the middle."""
        self.minutes(count // 2, each)
        self.compacted()
        self.minutes(count - count // 2, each)
        expired = {"snapshots-expired": 412, "data-files-removed": 380, "bytes-about": 23_400_000}
        self.cared_for(
            PastOutcome(0, "expiry", Ending.DONE, "", expired),
            PastOutcome(0, "manifests", Ending.DONE, "", {"manifests-removed": 118, "manifests-added": 2}),
            PastOutcome(0, "orphans", Ending.DONE, "", {"files-removed": 6, "bytes": 1_820_000}),
        )

    def cared_for(self, *outcomes: PastOutcome, minutes: int = 4) -> None:
        """Store results of the table's maintenance. They are `minutes` apart, and the last one is from now."""
        times = [self.at_ms - minutes * MINUTE_MS * n for n in range(len(outcomes))][::-1]
        reported = [replace(one, at_ms=at_ms) for one, at_ms in zip(outcomes, times, strict=True)]
        store_outcomes(self.made.tables.main.refresh(), reported, now_ms=self.at_ms)

    def backfills(self, hours: int, count: int) -> None:
        """Begin a backfill, and stage that many rows of the hours before. Some of its chunks are still missing."""
        tables = self.made.tables
        committer = BackfillCommitter.begin(tables, parse_request({"stream": self.name}))
        key, main = committer.next_key(), tables.main.refresh()
        begin_us = Grain.HOUR.floor(self.at_ms * 1000) - hours * Grain.HOUR.us
        times = np.linspace(begin_us, begin_us + 4 * Grain.HOUR.us, count, endpoint=False).astype(np.int64)
        self.made.columns = partial(_columns, times=times, keys=None)
        folder = batch_folder(main, committer.own_tables.stream, key)
        progress = RangeProgress(self.made.topic, 0, 0, count, count, 0, int(times[-1]))
        journal = Journal(
            stream=self.name, key=key, table_uuid=str(main.metadata.table_uuid), created_at_ms=self.at_ms,
            source=self.made.source, progress=(progress,),
            files=self.made.write(main, key, "main", {0: np.arange(count)}, folder=folder),
            newest_dead_letters=NO_DEAD_LETTERS, idle=frozenset(), offsets_after={progress.topic_partition: count},
        )  # fmt: skip
        committer.commit(journal, planned=3)

    def runs(self, *, pid: int, backpressure_ms: int = 0, stall: Stall | None = None) -> None:
        """Let the stream's writer run under supervision."""
        self.launch(identify_process(pid), committed_ms=self.at_ms)
        if stall is not None:
            self.record(StallBegan(stall))
        marker, folder = self.marker, run_folder(self.name)
        lag = sum(self.waits.values())

        def heartbeat(now_ms: int) -> None:
            Heartbeat(
                self.name, pid, self.spec.fingerprint(), Phase.WAITING, now_ms, now_ms,
                epoch=marker.key.epoch, batch=marker.key.batch, lag=lag, backpressure_ms=backpressure_ms,
                last_commit_at_ms=self.at_ms, last_commit_snapshot=marker.snapshot_id,
                watermark_ms=marker.watermark_ms, stall=stall,
            ).write(folder)  # fmt: skip

        self.heartbeats(heartbeat)

    def launch(self, process: ProcessMark, *, committed_ms: int) -> Launch:
        folder = run_folder(self.name)
        folder.mkdir(parents=True, exist_ok=True)
        began_ms = committed_ms - 20 * MINUTE_MS
        launch = Launch(f"{self.name}-now", LaunchKind.SUPERVISED, began_ms, self.spec.fingerprint(), writer=process)
        replace_json(folder / LOCK_FILE, dataclasses.asdict(launch))
        return launch

    def ended(self, ends: Sequence[tuple[int, int | None, str | None]], *, now_ms: int) -> Launch:
        """Record failed writers: how many minutes ago, exit code and error. The last entry is the last launch."""
        launch = self.launch(ProcessMark(2**22 - 1, 1.0), committed_ms=self.at_ms)
        for number, (minutes, code, words) in enumerate(ends, 1):
            at_ms, last = now_ms - minutes * MINUTE_MS, number == len(ends)
            launch_id = launch.id if last else f"{self.name}-{number}"
            append_exit(
                run_folder(self.name),
                ExitRecord(
                    launch_id,
                    code,
                    at_ms - 25_000,
                    at_ms,
                    launch.spec_fingerprint,
                    0,
                    committed=number == 1 < len(ends),
                    error=words,
                ),
            )
        return launch

    def supervised(self, *reported: tuple[int, str], now_ms: int) -> None:
        """Record actions of the supervisor: how many minutes ago, and the message."""
        supervision = SupervisionRecorder(lambda: HistoryStore.open(self.made.tables.main.current(), self.name))
        for minutes, sentence in reported:
            at_ms = now_ms - minutes * MINUTE_MS
            supervision.record(HistoryEvent(at_ms, EventKind.SUPERVISION, sentence), subject=sentence, now_ms=at_ms)
            supervision.join(10)

    def signalled(self, *, held: Mapping[int, str] | None = None) -> None:
        """Signal complete windows. `held` are windows, as hours before now, with what their gate found."""
        at_us = self.at_ms * 1000

        def gates(seen: Assessment, windows: Sequence[Window]) -> dict[Window, GateOutcome]:
            found = {seen.grain.floor(at_us) - hours * seen.grain.us: note for hours, note in (held or {}).items()}
            return {w: GateOutcome(w.start_us not in found, found.get(w.start_us)) for w in windows}

        catalog = load_catalog(None)
        seen = assess_table(catalog, [self.spec])
        assert seen is not None
        signal_windows(catalog, seen, clock_ms=self.at_ms, gates=gates)

    def released(self, hours: int, note: str) -> None:
        start_us = Grain.HOUR.floor(self.at_ms * 1000) - hours * Grain.HOUR.us
        release_window(load_catalog(None), self.spec, Window(start_us, Grain.HOUR), note=note, clock_ms=self.at_ms)

    def compacted(self) -> None:
        """Replace all files by one per table partition with the same rows, as `rewrite_data_files` does."""
        table = self.made.tables.main.refresh()
        before = head_of(table.metadata)
        assert before is not None
        reported = before.summary.additional_properties if before.summary else {}
        key, until_us = BatchKey(9_000, 1), self.at_ms * 1000
        times = np.linspace(until_us - 49 * Grain.HOUR.us, until_us, sum(self.read), endpoint=False).astype(np.int64)
        self.made.columns = partial(_columns, times=times, keys=None)
        files = self.made.write(table, key, "main", {p: np.arange(end) for p, end in enumerate(self.read)})
        prepared = SnapshotWriter(files, base=BaseManifests((), (), None)).prepare(
            table, summary={}, now_ms=self.at_ms + 20_000
        )
        counts = {
            "added-data-files": str(len(files)),
            "added-files-size": str(sum(file.bytes for file in files)),
            "deleted-data-files": reported["total-data-files"],
            "removed-files-size": reported["total-files-size"],
            "total-data-files": str(len(files)),
            "total-files-size": str(sum(file.bytes for file in files)),
            "total-records": reported["total-records"],
            "total-delete-files": "0",
        }
        snapshot = prepared.snapshot.model_copy(update={"summary": Summary(Operation.REPLACE, **counts)})
        updates = (AddSnapshotUpdate(snapshot=snapshot), *prepared.updates[1:])
        table.catalog.commit_table(table, prepared.requirements, updates)
        self.made.tables.main.forget()
        done = {
            "files-removed": int(reported["total-data-files"]), "files-added": len(files),
            "bytes": int(reported["total-files-size"]), "bytes-added": sum(file.bytes for file in files),
        }  # fmt: skip
        self.cared_for(PastOutcome(0, "compaction", Ending.DONE, "", done))


def _columns(rows: int, *, times: np.ndarray[Any, Any], keys: int | None) -> dict[str, pa.Array]:
    """Return values of the declared columns: event times in order, and ids, which repeat if they are keys."""
    at = np.resize(times, rows) if len(times) else np.zeros(rows, np.int64)
    numbers = np.arange(rows, dtype=np.int64)
    ids = numbers if keys is None else numbers * 31 % keys
    tokens = np.random.default_rng(0).integers(10**17, 10**18, rows).astype(str)  # as large in a file as they look
    columns = {"id": pa.array(ids), "at": pa.array(at), "token": pa.array(tokens)}
    return columns if keys is None else {**columns, CHANGE: pa.array(np.full(rows, UPSERT, np.int32))}
