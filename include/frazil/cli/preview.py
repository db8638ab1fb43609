"""`frazil preview`: shows what would become of a stream's newest records."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import click

from frazil.cli.options import json_option, stream_argument, streams_option
from frazil.cli.output import echo, echo_json
from frazil.spec.load import find_stream
from frazil.spec.units import counted


@click.command()
@stream_argument()
@streams_option
@json_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Number of records.")
def preview(stream: str, streams_folder: Path, *, as_json: bool, limit: int) -> None:
    """Show what would become of the newest records of STREAM: rows, dead letters, or dropped by the transform.

    Reads the topics and writes nothing: no table, no marker, no consumer group. The table need not exist. The records
    come from the end of each topic-partition. Repeats that dedupe drops, and routes, are not shown.

    \b
    Example:
      frazil preview flights --limit 50
    """
    from frazil.stream.preview import preview as previewed  # noqa: PLC0415 - loads Arrow and librdkafka

    found = previewed(find_stream(streams_folder, stream), limit=limit)
    if as_json:
        echo_json({"stream": stream, "records": [_plain(dataclasses.asdict(one)) for one in found]})
        return
    for one in found:
        what = one.error or " ".join(json.dumps(_plain(row), ensure_ascii=False) for row in one.rows)
        echo(f"{one.topic}-{one.partition}@{one.offset}  {one.fate:<11}  {what}".rstrip())
    fates = Counter(one.fate for one in found)
    words = [counted(fates["row"], "record", "lands|land"), f"{fates['dropped']:,} dropped"]
    words += [counted(fates["dead letter"], "dead letter")]
    words += [f"{fates['no change']:,} without a change"] * bool(fates["no change"])
    echo(f"{counted(len(found), 'record')}: {', '.join(words)}. Nothing was written.")


def _plain(value: Any) -> Any:
    """Return a value in JSON's types."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
