"""Stores the rows of routed tables that cannot be loaded or created, as files next to the default table.

The files have the default table's format. Once the routed table exists, the rows are rewritten with its columns, and a
record lists the new files. A note has the reason why the table is missing. If an operator discarded rows, it also
names the last batch with such rows.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from frazil.commit.commit_checks import files_fit
from frazil.commit.journal import Journal, bare_path
from frazil.commit.marker import BatchKey
from frazil.commit.merging import MERGING_MODES
from frazil.commit.staging_targets import object_path, target_table
from frazil.commit.stream_tables import StreamTables
from frazil.errors import Explanation, error_text
from frazil.ingest.contract import StagedFile, Target
from frazil.ingest.table_writer import TableWriter, file_namer
from frazil.table.tables import data_location
from frazil.typed_json import decode

log = logging.getLogger(__name__)

REWRITTEN_FOLDER = "waited"
"""Folder of rewritten rows. Sweeps ignore this name."""
RECORD_FILE_NAME = "files.json"


@dataclass(frozen=True, slots=True)
class MissingTableNote:
    target: Target
    value: str | None
    """The table's route value, if a template names the table."""
    reason: str
    given_up: BatchKey | None = None
    """The last batch with rows for this table that an operator discarded."""
    remedy: str = ""

    @property
    def explanation(self) -> Explanation:
        return Explanation(self.reason, self.remedy)


def is_waiting_file(tables: StreamTables, file: StagedFile) -> bool:
    return bare_path(file.path).startswith(f"{bare_path(tables.waiting_folder())}/")


def has_waiting_files(tables: StreamTables, journals: Iterable[Journal], target: Target) -> bool:
    return any(is_waiting_file(tables, file) for journal in journals for file in journal.staged_for(target))


def all_files_wait(tables: StreamTables, journals: Iterable[Journal], target: Target) -> bool:
    return all(is_waiting_file(tables, file) for journal in journals for file in journal.staged_for(target))


def find_missing_files(tables: StreamTables, files: Iterable[StagedFile]) -> list[str]:
    """Return the bare paths of staged files that do not exist."""
    by_folder = defaultdict[tuple[Target, str], set[str]](set)
    for file in files:
        holder = "main" if is_waiting_file(tables, file) else file.target
        by_folder[holder, file.path.rsplit("/", 1)[0]].add(bare_path(file.path))
    missing = (
        paths - {bare_path(info.path) for info in tables.store_of(holder).list_files(folder)}
        for (holder, folder), paths in by_folder.items()
    )
    return sorted(set().union(*missing))


def files_for_table(tables: StreamTables, table: Table, journal: Journal, target: Target) -> tuple[StagedFile, ...]:
    """Return a batch's files for the table. Files outside the table's folder are rewritten once."""
    files = journal.staged_for(target)
    folders = tuple(f"{bare_path(folder).rstrip('/')}/" for folder in (table.location(), data_location(table)))
    usable = tuple(f for f in files if bare_path(f.path).startswith(folders) and not is_waiting_file(tables, f))
    if len(usable) == len(files):
        return files
    store = tables.store_of(target)
    record = _record_path(tables, table, journal.key)
    folder = record.rsplit("/", 1)[0]
    rewritten = _parse_record(store.get(record), table)
    if rewritten and files_fit(table.metadata, rewritten):
        existing = {bare_path(file.path) for file in store.list_files(folder)}
        if existing.issuperset(bare_path(file.path) for file in rewritten):
            return (*usable, *rewritten)
    rewritten = rewrite_files(tables, table, [f for f in files if f not in usable], target, folder=folder)
    content = {"table": str(table.metadata.table_uuid), "files": [file.to_json() for file in rewritten]}
    store.put(record, json.dumps(content).encode())
    return (*usable, *rewritten)


def rewrite_files(
    tables: StreamTables, table: Table, files: Sequence[StagedFile], target: Target, *, folder: str
) -> tuple[StagedFile, ...]:
    """Rewrite staged files of the default table, or an earlier table, as files of `table`. Returns the new files."""
    from frazil.ingest.routed_writers import fit_rows, other_names  # loads Numba, for writers only

    merging = tables.merging if files[0].content in MERGING_MODES else None
    layout = (merging.staging_target if merging else target_table)(table, folder=folder)
    writer = TableWriter(layout, target, io=table.io, file_name=file_namer(0, 0))
    default_table = tables.main.current()
    own_folder = f"{bare_path(data_location(default_table))}/"
    schema = default_table.schema().model_dump_json()
    names = other_names(layout.schema_json, layout.properties, schema, default_table.properties)
    try:
        for file in files:
            is_waiting = is_waiting_file(tables, file) or bare_path(file.path).startswith(own_folder)
            source = (default_table if is_waiting else table).io
            with source.new_input(file.path).open() as stream:
                for batch in pq.ParquetFile(stream).iter_batches():
                    writer.add(fit_rows(pa.Table.from_batches([batch]), writer.layout, names))
        written = tuple(writer.finish())
    except BaseException:
        writer.abort()
        raise
    tables.store_of(target).sync_files([file.path for file in written])
    return written


def delete_waiting_files(tables: StreamTables, journals: Iterable[Journal], target: Target) -> None:
    """Delete the waiting files of batches that are now in the table. The next start deletes files that remain."""
    waited = [journal for journal in journals if has_waiting_files(tables, [journal], target)]
    if not waited:
        return
    files = (file for journal in waited for file in journal.staged_for(target))
    try:
        tables.store.delete([file.path for file in files if is_waiting_file(tables, file)])
        table = tables.handle(target).current()
        tables.store_of(target).delete([_record_path(tables, table, journal.key) for journal in waited])
    except Exception as error:  # storages raise anything, and the rows are where they belong
        log.info(
            "cannot delete the waiting files of table %s; the next start tries again: %s", target, error_text(error)
        )


def sweep_waiting_files(
    tables: StreamTables, waiting: Mapping[Target, Sequence[Journal]], *, below_epoch: int, complete: BatchKey
) -> None:
    """Delete the files and notes of tables for which no rows wait. Call this right after `settle`."""
    store = tables.store
    needed = {bare_path(f.path) for target, js in waiting.items() for j in js for f in j.staged_for(target)}
    for folder in store.list_folders(tables.waiting_folder()):
        name = folder.rstrip("/").rsplit("/", 1)[-1]
        if name.isdigit() and int(name) < below_epoch:
            store.delete([f.path for f in store.list_files(folder) if bare_path(f.path) not in needed])
    for note in load_missing_table_notes(tables):
        if note.target not in waiting and (note.given_up is None or note.given_up <= complete):
            store.delete([_note_path(tables, note.target)])


def load_missing_table_note(tables: StreamTables, target: Target) -> MissingTableNote | None:
    data = tables.store.get(_note_path(tables, target))
    return None if data is None else _parse_note(data)


def load_missing_table_notes(tables: StreamTables) -> list[MissingTableNote]:
    objects = (tables.store.get(file.path) for file in tables.store.list_files(f"{tables.waiting_folder()}/tables"))
    return [note for data in objects if data is not None and (note := _parse_note(data))]


def write_missing_table_note(tables: StreamTables, note: MissingTableNote) -> None:
    """Write a missing table's note before any row waits for the table. An earlier `given_up` is kept."""
    stored = load_missing_table_note(tables, note.target)
    if stored is not None and note.given_up is None:
        note = dataclasses.replace(note, given_up=stored.given_up)
    if note != stored:
        tables.store.put(_note_path(tables, note.target), json.dumps(dataclasses.asdict(note)).encode())


def drop_discarded(journals: Iterable[Journal], note: MissingTableNote | None) -> list[Journal]:
    """Return the batches with rows that still wait for a table. Omits batches whose rows an operator discarded."""
    return [j for j in journals if note is None or note.given_up is None or j.key > note.given_up]


def _parse_note(data: bytes) -> MissingTableNote | None:
    try:
        return decode(data, MissingTableNote)
    except ValueError:
        return None


def _parse_record(data: bytes | None, table: Table) -> tuple[StagedFile, ...]:
    try:
        raw = json.loads(data or b"{}")
        ours = raw["table"] == str(table.metadata.table_uuid)
        return tuple(StagedFile.from_json(file) for file in raw["files"]) if ours else ()
    except (ValueError, KeyError, TypeError):
        return ()


def _record_path(tables: StreamTables, table: Table, key: BatchKey) -> str:
    folder = f"{data_location(table)}/{tables.stream}/{REWRITTEN_FOLDER}"
    return f"{folder}/{key.epoch:08d}/{key.batch:08d}/{RECORD_FILE_NAME}"


def _note_path(tables: StreamTables, target: Target) -> str:
    return object_path(f"{tables.waiting_folder()}/tables", target)
