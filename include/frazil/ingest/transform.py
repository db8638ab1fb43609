"""Runs a stream's transform: DuckDB computes the table's columns from the decoded fields of records.

If an expression fails, further queries find all records with a failing expression. These records become dead letters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from frazil.errors import first_line
from frazil.ingest.arrow_values import cast_unchecked, find_missing_required
from frazil.ingest.chunk import RecordChunk
from frazil.ingest.contract import StageContext, Transform
from frazil.ingest.decode import DecodedChunk, Decoder, Rejection, bisect_failures
from frazil.ingest.formats import create_decoder
from frazil.ingest.formats.fields import fill_nulls, find_defaults, units_of_fields
from frazil.ingest.key_header_columns import KeyDecoder, KeyHeaderReader, value_schema
from frazil.ingest.record_files import RowChunk
from frazil.ingest.sensitive import withheld_paths
from frazil.ingest.transform_sql import (
    KEEP,
    ROW,
    UNNESTED,
    full_query,
    open_connection,
    quote_name,
    select_query,
    try_expression,
    where_condition,
)
from frazil.safe_text import shorten

TRANSFORM_FAILED = "TransformFailed"
MAX_QUOTED_CHARACTERS = 80
MAX_REASON_CHARACTERS = 200
MAX_REASONS = 20
"""Maximum number of a chunk's failing records for which another query gets DuckDB's message."""
MAX_QUERY_GROWTH = 768 * 2**20
"""Bytes that a query may add to the process. DuckDB's own limit ignores texts that functions make."""
MIN_QUERY_GROWTH = 64 * 2**20
MAX_RESULT_BYTES = 256 * 2**20
_FAILS_PREFIX = "_frazil_fails_"

T = TypeVar("T")


def create_transformed_decoder(context: StageContext, columns: Schema) -> TransformedDecoder:
    assert context.transform is not None
    records = Schema.model_validate_json(context.transform.records_json)
    filled = value_schema(records, context.filled_from_keys_and_headers)
    units = units_of_fields(filled, context.record_units)
    return TransformedDecoder(
        create_decoder(context.record_format, filled, units, hidden=withheld_paths(context, columns)),
        KeyHeaderReader(records, context.filled_from_keys_and_headers, KeyDecoder(context, records)),
        context.transform,
        columns,
        withheld=bool(context.sensitive),
    )


class TransformedDecoder:
    """Decodes records to the fields of `records`, and transforms these to rows with the table's columns."""

    def __init__(
        self,
        decode: Decoder,
        key_header_reader: KeyHeaderReader,
        transform: Transform,
        columns: Schema,
        *,
        withheld: bool,
    ) -> None:
        """If `withheld` is set, error messages quote no values."""
        self._decode, self._key_header_reader, self._transform = decode, key_header_reader, transform
        self._columns = schema_to_pyarrow(columns, include_field_ids=True)
        self._made = {column.name for column in transform.columns}
        self._defaults = find_defaults(columns)
        self._withheld = withheld
        self._retained = 0
        """Bytes that DuckDB's allocator has reserved for queries that failed. Later queries use these bytes first."""
        self._reasons: dict[tuple[object, ...], str] = {}
        self._wary = False
        """Whether a record of the last chunk failed. The next chunk is then searched for failures first."""

    def __call__(self, chunk: RecordChunk) -> DecodedChunk:
        if isinstance(chunk, RowChunk):
            fields = DecodedChunk(chunk.rows, np.arange(len(chunk)))
        else:
            fields = self._key_header_reader(self._decode(chunk), chunk)
        numbered = fields.rows.append_column(ROW, pa.array(np.arange(fields.rows.num_rows)))
        failed: dict[int, str] = {}
        self._reasons.clear()
        transformed = None if self._wary else self._transform_all(numbered)
        if transformed is None:
            failed, transformed = self._transform_valid(numbered)
        rejections = [
            Rejection(int(fields.record_indexes[row]), TRANSFORM_FAILED, failed[row]) for row in sorted(failed)
        ]
        rows, missing = self._fit_rows(transformed)
        indexes = fields.record_indexes[transformed.column(ROW).to_numpy()]
        fitted = DecodedChunk(rows, indexes, [*fields.rejections, *rejections], fields.drift).reject_rows(missing)
        dropped = np.zeros(len(chunk), np.bool_)
        dropped[fields.record_indexes] = True
        dropped &= fitted.no_result_mask(len(chunk))
        rows = pa.Table.from_arrays(fitted.rows.columns, schema=self._columns)
        return dataclasses.replace(fitted, rows=rows, dropped=np.flatnonzero(dropped))

    @cached_property
    def _connection(self) -> Any:
        return open_connection()

    def _query(self, query: str, records: pa.Table) -> pa.Table:
        import duckdb  # as in open_connection

        connection, old_memory = self._connection, private_memory()
        connection.register("records", records)
        try:
            with limit_memory(max(MAX_QUERY_GROWTH - self._retained, MIN_QUERY_GROWTH)):
                result = connection.sql(query).to_arrow_table()
        except (MemoryError, duckdb.OutOfMemoryException) as error:
            result, problem = None, str(error) or "Out of Memory Error"
        except (duckdb.InternalException, duckdb.FatalException):
            del self._connection  # all further queries of this connection would fail
            raise
        finally:
            with contextlib.suppress(duckdb.FatalException):
                connection.unregister("records")
        if result is not None and result.nbytes <= MAX_RESULT_BYTES:
            return result
        if result is not None:
            problem = f"Out of Memory Error: the result has {result.nbytes:,} bytes"
        del self._connection, result
        connection.close()  # without an exception that refers to its memory, so that this memory is free at once
        self._retained += max(private_memory() - old_memory, 0)
        raise duckdb.OutOfMemoryException(problem)

    def _transform_all(self, records: pa.Table) -> pa.Table | None:
        """Return the transformed records; None if an expression fails for any of them."""
        import duckdb  # as in open_connection

        try:
            return self._query(full_query(self._transform), records)
        except (duckdb.Error, UnicodeDecodeError):
            return None  # DuckDB may cut its message within a character

    def _transform_valid(self, records: pa.Table) -> tuple[dict[int, str], pa.Table]:
        """Return the error texts of failing rows, and the other rows, transformed. Searches `_may_fail_mask` first."""
        suspect = self._may_fail_mask(records)
        failed = self._find_failures(records.filter(pa.array(suspect)))
        transformed = None if suspect.all() else self._transform_all(_remove_rows(records, failed))
        if transformed is None:
            failed |= self._find_failures(records.filter(pa.array(~suspect)))
            query, valid = full_query(self._transform), _remove_rows(records, failed)
            pieces = self._bisect(valid, lambda piece: self._query(query, piece), failed)
            transformed = pa.concat_tables([self._query(query, valid.slice(0, 0)), *pieces])
        self._wary = bool(failed)
        return failed, transformed

    def _may_fail_mask(self, records: pa.Table) -> NDArray[np.bool_]:
        """Return a mask of the records for which an expression may fail. If unknown, the mask has all records."""
        import duckdb  # as in open_connection

        all_records = np.ones(len(records), np.bool_)
        if not self._transform.may_fail:
            return all_records
        condition = " OR ".join(f"coalesce({text}, false)" for text in self._transform.may_fail)
        query = select_query(self._transform, [f"{condition} AS suspect"], source="SELECT * FROM records")
        try:
            suspect: NDArray[np.bool_] = self._query(query, records).column(0).to_numpy()
        except (duckdb.Error, UnicodeDecodeError):  # the condition itself fails, or it uses rows of UNNEST
            return all_records
        return suspect

    def _find_failures(self, records: pa.Table) -> dict[int, str]:
        """Return error texts by row of `records`. If TRY fails too, failures are found by bisection."""
        failed = dict[int, str]()
        for failures in self._bisect(records, self._try_expressions, failed):
            failed |= failures
        return failed

    def _bisect(self, records: pa.Table, attempt: Callable[[pa.Table], T], failed: dict[int, str]) -> Iterator[T]:
        """Yield the results of `attempt` for pieces of `records`. Adds records that fail alone to `failed`."""
        for start, _, result in bisect_failures(
            len(records), lambda start, end: attempt(records.slice(start, end - start))
        ):
            if isinstance(result, Exception):
                failed[records.column(ROW)[start].as_py()] = f"the transform failed{self._describe(result)}"
            else:
                yield result

    def _try_expressions(self, records: pa.Table) -> dict[int, str]:
        transform, failed = self._transform, dict[int, str]()
        if transform.where:
            source = (
                f"SELECT *, {try_expression(where_condition(transform))} AS {KEEP} FROM records AS "
                f"{quote_name(transform.alias)}"
            )
            source_rows = self._query(source, records)
            keep = source_rows.column(KEEP)
            where = " AND ".join(transform.where)
            failed |= self._failure_texts(
                source_rows.filter(keep.is_null()), "WHERE", where, transform.where_reads, where_condition(transform)
            )
            records = records.filter(pc.fill_null(pc.struct_field(keep, "v"), False))
        if transform.unnested:
            lists = [f"{try_expression(text)} AS {UNNESTED}{n}" for n, text in enumerate(transform.unnested)]
            result = self._query(select_query(transform, ["*", *lists], source="SELECT * FROM records"), records)
            good = np.ones(len(result), np.bool_)
            for n, text in enumerate(transform.unnested):
                null = result.column(f"{UNNESTED}{n}").is_null()
                failed |= self._failure_texts(result.filter(null), "UNNEST", text, (), text)
                good &= ~null.to_numpy()
            unnest = [f"unnest({UNNESTED}{n}.v) AS {UNNESTED}{n}" for n in range(len(transform.unnested))]
            columns = f"* EXCLUDE ({', '.join(f'{UNNESTED}{n}' for n in range(len(unnest)))})"
            query = select_query(transform, [columns, *unnest], source="SELECT * FROM records")
            records = self._query(query, result.filter(pa.array(good)))
        tries = [f"{column.fails} AS {_FAILS_PREFIX}{n}" for n, column in enumerate(transform.columns)]
        result = self._query(select_query(transform, tries, source="SELECT * FROM records"), records)
        for n, column in enumerate(transform.columns):
            rows = records.filter(result.column(n))
            texts = self._failure_texts(rows, column.name, column.declared, column.reads, column.expression)
            failed = {**texts, **failed}
        return failed

    def _failure_texts(
        self, rows: pa.Table, name: str, written: str, reads: Sequence[str], expression: str
    ) -> dict[int, str]:
        """Return each row's error text: the expression as `written`, the fields that it reads, and DuckDB's reason.

        If `withheld`, the text has no values.
        """
        texts = {}
        values = zip(*(map(repr, rows.column(field).to_pylist()) for field in reads), strict=True)
        for position, row in enumerate(rows.column(ROW).to_pylist()):
            cells = next(values, ())
            pairs = zip(reads, cells, strict=True) if not self._withheld else ()
            pair_text = ", ".join(f"{field} = {shorten(value, MAX_QUOTED_CHARACTERS)}" for field, value in pairs)
            reason = self._find_reason(expression, (expression, *(cells or (row,))), rows, position)
            texts[row] = f"{name}: {written} failed{' for ' if pair_text else ''}{pair_text}{reason}"
        return texts

    def _find_reason(self, expression: str, key: tuple[object, ...], rows: pa.Table, position: int) -> str:
        """Evaluate an expression again to find why it fails for a row. `key` identifies the values that it reads."""
        import duckdb  # as in open_connection

        if key not in self._reasons and len(self._reasons) < MAX_REASONS:
            query = select_query(self._transform, [f"{expression} AS c"], source="SELECT * FROM records")
            try:
                self._query(query, rows.slice(position, 1))
            except (duckdb.Error, UnicodeDecodeError) as error:
                self._reasons[key] = self._describe(error)
        return self._reasons.get(key, "")

    def _describe(self, error: Exception) -> str:
        """Return DuckDB's message, or only its class if values are withheld: messages quote values."""
        import duckdb  # as in open_connection

        text = first_line(error)
        if self._withheld:
            text = text.partition(":")[0] if isinstance(error, duckdb.Error) else ""
        if isinstance(error, UnicodeDecodeError) or not text:  # DuckDB has cut its message within a character
            return ""
        return f": {shorten(text, MAX_REASON_CHARACTERS)}"

    def _fit_rows(self, rows: pa.Table) -> tuple[pa.Table, dict[int, tuple[str, str]]]:
        """Return the table's columns, and the error class and text of each row that does not fit."""
        arrays, failures = [], dict[int, tuple[str, str]]()
        for field in self._columns:
            default = self._defaults.get(field.name)
            if field.name not in self._made:  # another program added the column
                arrays.append(fill_nulls(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]), default))
                continue
            values = rows.column(field.name)
            if not field.nullable and values.null_count and default is None:
                for row in np.flatnonzero(values.is_null().to_numpy()).tolist():
                    failures.setdefault(row, ("MissingRequired", f"{field.name}: required, and missing or null"))
            if pa.types.is_fixed_size_binary(field.type):
                length = field.type.byte_width
                unfit = pc.fill_null(pc.not_equal(pc.binary_length(values), length), False)
                for row in np.flatnonzero(unfit.to_numpy()).tolist():
                    failures.setdefault(
                        row, (TRANSFORM_FAILED, f"{field.name}: the value does not have {length} bytes")
                    )
                values = pc.if_else(unfit, pa.scalar(bytes(length), values.type), values)  # to be filtered out
            array = cast_unchecked(values.combine_chunks(), field.type)
            for row, text in find_missing_required(array, field).items():
                failures.setdefault(row, ("MissingRequired", text))
            arrays.append(fill_nulls(pa.chunked_array([array]), default))
        return pa.Table.from_arrays(arrays, names=self._columns.names), failures


def _remove_rows(records: pa.Table, failed: Collection[int]) -> pa.Table:
    good = np.ones(len(records), np.bool_)
    good[list(failed)] = False
    return records.filter(pa.array(good))


_lock = threading.Lock()
_guards = 0
_unguarded = 0
"""The limit outside of all guards."""


def private_memory() -> int:
    """Return the bytes that the process has reserved; 0 where there is no limit to set."""
    try:
        import resource  # only Unix has it

        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except (ImportError, OSError):
        return 0


@contextlib.contextmanager
def limit_memory(growth: int) -> Iterator[None]:
    """Let allocations fail after the process's private memory has grown by `growth` bytes. Only Linux has this limit.

    Guards of several threads share the highest limit. Allocations of other threads may fail too: librdkafka then aborts
    the process, and the task's next attempt decodes in a process without librdkafka's threads.
    """
    if not (used := private_memory()):
        yield
        return
    import resource  # as in `private_memory`

    global _guards, _unguarded  # noqa: PLW0603 - the limit is the process's
    with _lock:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        _unguarded = _unguarded if _guards else soft
        allowed = min(limit for limit in (used + growth, _unguarded, hard) if limit != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_DATA, (max(allowed, soft) if _guards else allowed, hard))
        _guards += 1
    try:
        yield
    finally:
        with _lock:
            _guards -= 1
            if not _guards:
                resource.setrlimit(resource.RLIMIT_DATA, (_unguarded, hard))
