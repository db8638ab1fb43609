"""The one place where a format's name becomes a decoder.

Avro, Protobuf and others are later issues: each is one more case in `decoder` and one module beside `decode_json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.schema import Schema

from frazil.errors import SpecError


class Rejection(NamedTuple):
    """One record that becomes a dead letter; `index` is its place in the chunk."""

    index: int  # type: ignore[assignment]  # nobody looks for a value in it, and a tuple is cheaper than a dataclass
    error_class: str
    error: str


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of a chunk of n values: row i of `rows` came from value `kept[i]`, all others are rejections."""

    rows: pa.Table
    kept: NDArray[np.int64]
    rejections: list[Rejection] = field(default_factory=list)

    def moved(self, places: NDArray[np.int64]) -> Decoded:
        """The same, where value i of this chunk was value `places[i]` of a larger one."""
        rejections = [Rejection(int(places[r.index]), r.error_class, r.error) for r in self.rejections]
        return Decoded(self.rows, places[self.kept], rejections)

    def without(self, taken: NDArray[np.bool_]) -> Decoded:
        """The same, but for the values of the chunk that are `taken`."""
        stays = ~taken[self.kept]
        rejections = [r for r in self.rejections if not taken[r.index]]
        return Decoded(self.rows.filter(pa.array(stays)), self.kept[stays], rejections)


Decoder = Callable[[Sequence[bytes | None]], Decoded]


def joined(parts: Sequence[Decoded]) -> Decoded:
    """Parts of one chunk, already in its numbering, as one."""
    return Decoded(
        pa.concat_tables([part.rows for part in parts]),
        np.concatenate([part.kept for part in parts]),
        [rejection for part in parts for rejection in part.rejections],
    )


def check_supported(schema: Schema, format_name: str) -> None:
    """Refuse at start what would fail at every record. Raises SpecError."""
    decoder(format_name, schema, {})


def decoder(format_name: str, schema: Schema, units: Mapping[int, str]) -> Decoder:
    """A decoder of chunks to Arrow tables of this Iceberg schema, field ids included.

    `units` maps a timestamp column's field id to the unit of the number that it arrives as. Raises SpecError for a
    format or a column type that cannot be decoded.
    """
    if format_name == "json":
        from frazil.ingest.decode_json import JsonDecoder  # noqa: PLC0415 - only the format in use is loaded

        return JsonDecoder(schema, units)
    raise SpecError(f"source.format: {format_name!r} is not a format that frazil decodes; allowed: json")
