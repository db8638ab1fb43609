"""`frazil preview` and `reveal`: show what a stream's newest records would become, and decrypt its tokens."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from frazil.cli.options import json_option, stream_argument, stream_options, streams_option
from frazil.cli.output import echo, echo_json
from frazil.errors import FrazilError, SchemaIncompatible, SpecError, error_text
from frazil.spec.load import find_stream
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_count

MAX_SHOWN_CHARACTERS = 200


@click.command()
@stream_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Number of records.")
def preview(stream: str, streams_folder: Path, *, as_json: bool, limit: int) -> None:
    """Show what the newest records of STREAM would become: rows, changes, deletes, dead letters, or nothing.

    Reads the topics and writes nothing: no table, no marker, no consumer group. The table need not exist. The records
    come from the end of each topic-partition. The command reads no rows: it does not look for repeats, and shows a
    change or delete even if its row or a template's table does not exist. For a route, it shows each row's table and
    finds values without a table, but ignores the route's `limit`. If the table exists and does not fit the declaration,
    the last line says so.

    \b
    Example:
      frazil preview flights --limit 50
    """
    from frazil.stream.preview import preview as previewed  # loads Arrow and librdkafka

    spec = find_stream(streams_folder, stream)
    records, misfit = previewed(spec, limit=limit), _find_misfit(spec)
    if as_json:
        listed = [_to_json_value(dataclasses.asdict(record)) for record in records]
        echo_json({"stream": stream, "records": listed, "table-problem": misfit})
        return
    if not records:
        echo(f"The topics of stream {stream} have no records.")
        return
    for record in records:
        rows = (json.dumps(_to_json_value(row, limit=MAX_SHOWN_CHARACTERS), ensure_ascii=False) for row in record.rows)
        row_texts = (f"{table}: {row}" if table else row for table, row in zip_longest(record.tables, rows))
        content = _shorten(record.error or " ".join(row_texts), 10 * MAX_SHOWN_CHARACTERS)
        echo(f"{record.topic}-{record.partition}@{record.offset}  {record.outcome:<11}  {content}".rstrip())
    outcomes = Counter(record.outcome for record in records)
    merges = "change" in outcomes or "delete" in outcomes
    count = outcomes["change" if merges else "row"]
    landing = format_count(count, "change") if merges else f"{count:,} {'lands' if count == 1 else 'land'}"
    words = [landing, f"{outcomes['dropped']:,} dropped", format_count(outcomes["dead letter"], "dead letter")]
    words += [format_count(outcomes["delete"], "delete")] * bool(outcomes["delete"])
    words += [f"{outcomes['no change']:,} without a change"] * bool(outcomes["no change"])
    echo(f"{format_count(len(records), 'record')}: {', '.join(words)}. Nothing was written.")
    if merges:
        echo("A merge skips changes and deletes that are older than the table's rows, which a preview does not read.")
    if spec.sinks.mode.drops_repeats:
        echo("A commit drops repeats (dedupe), which a preview does not look for: fewer rows may land.")
    if misfit:
        echo(misfit)


def _find_misfit(spec: StreamSpec) -> str:
    """Return why a writer would refuse the existing tables, or why this is unknown; empty if it would not."""
    from frazil.table.tables import check_existing_tables  # loads PyIceberg

    try:
        check_existing_tables(spec)
    except SchemaIncompatible as error:
        return f"A writer would refuse this declaration and write nothing: {error_text(error)}"
    except FrazilError as error:
        return f"Cannot compare the declaration with an existing table: {error_text(error)}"
    return ""


@click.command()
@stream_argument()
@click.argument("tokens", nargs=-1)
@streams_option
@json_option
def reveal(stream: str, tokens: tuple[str, ...], streams_folder: Path, *, as_json: bool) -> None:
    """Decrypt TOKENS that STREAM created from its sensitive fields (`tokenize`). Prints one text per line.

    Without TOKENS, reads them from standard input, one per line. The environment must have the secret that the stream's
    `sensitive.secret` refers to.

    \b
    Example:
      frazil reveal payments VSy9TqPq0Hd1mEEZ1IEAlJMEsz8
    """
    from frazil.ingest.sealing import Sealer  # loads the extra `sensitive`

    declared = find_stream(streams_folder, stream).sensitive
    if declared is None or declared.secret is None:
        raise SpecError(f"stream {stream!r} declares no sensitive.secret, so it has created no tokens")
    secret = Sealer.of(declared.secret, os.environ)
    texts = {}
    for token in tokens or (line.strip() for line in sys.stdin or ()):
        try:
            texts[token] = secret.decrypt_token(token)
        except ValueError as error:
            text = f"{token!r} {error}: it was created with another secret, or is incomplete"
            raise click.ClickException(text) from None
        if not as_json:
            echo(texts[token])
    if as_json:
        echo_json({"stream": stream, "texts": texts})


def _to_json_value(value: Any, *, limit: int | None = None) -> Any:
    """Convert a value to JSON, which has no NaN and no infinity. Texts of over `limit` characters are shortened."""
    if isinstance(value, dict):
        return {str(key): _to_json_value(inner, limit=limit) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(inner, limit=limit) for inner in value]
    if value is None or isinstance(value, int | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _shorten(str(value), limit)


def _shorten(text: str, limit: int | None) -> str:
    return text if limit is None or len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"
