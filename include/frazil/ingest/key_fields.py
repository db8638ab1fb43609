"""Fills the key columns of tombstones (records without a value) from the fields of the record key.

Record keys are decoded in the same format as record values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from frazil.ingest.aliases import Make, aliased
from frazil.ingest.binary_column import NULL
from frazil.ingest.chunk import Chunk
from frazil.ingest.contract import StageContext
from frazil.ingest.decode import Decoded, Decoder, Rejection
from frazil.ingest.formats import decoder

PAYLOAD_ID, PAYLOAD_IDS = 300_000_000, 300_000_001
"""Field ids of `payload`, in which Kafka Connect wraps JSON that comes with its schema, and of its first inner
field.
"""


def key_decoder(context: StageContext, schema: Schema) -> Decoder | None:
    """Return a decoder for the keys of tombstones; None if no key column is filled from a field of the key."""
    if context.changes is None or not context.changes.key_fields:
        return None
    key = schema.select(*context.changes.key_fields)
    units = {key.find_field(name).field_id: unit for name, unit in context.units.items() if name in key.column_names}
    of_key = {name: field_id for name, field_id in context.aliases.items() if key.find_column_name(field_id)}
    make = partial(decoder, context.record_format)
    return KeyFields(lambda columns, units: aliased(make, columns, units, of_key), key, units)


class KeyFields:
    """Decodes record keys, passed as the values of a chunk, to rows of the key columns."""

    def __init__(self, make: Make, key: Schema, units: Mapping[int, str]) -> None:
        plain = [field.model_copy(update={"required": False}) for field in key.fields]
        inner = [field.model_copy(update={"field_id": PAYLOAD_IDS + n}) for n, field in enumerate(plain)]
        # With a column of this name, a key with its schema looks the same as one without.
        self._wrapped = "payload" not in key.column_names
        payload = [NestedField(PAYLOAD_ID, "payload", StructType(*inner), required=False)] * self._wrapped
        of_inner = {PAYLOAD_IDS + n: units[f.field_id] for n, f in enumerate(plain) if f.field_id in units}
        self._schema = schema_to_pyarrow(Schema(*plain), include_field_ids=True)
        self._decode = make(Schema(*plain, *payload), {**units, **(of_inner if payload else {})})

    def __call__(self, chunk: Chunk) -> Decoded:
        there = np.flatnonzero(chunk.values.lengths != NULL)
        decoded = self._decode(Chunk.of_column(chunk.values.take(there))).moved(there)
        columns = [self._column(field.name, decoded.rows) for field in self._schema]
        wrong = {r.index: r._replace(error=f"the record's key: {r.error}") for r in decoded.rejections}
        for field, column in zip(self._schema, columns, strict=True):
            text = f"the record's key: {field.name}: required, and missing or null"
            missing = decoded.kept[column.is_null().to_numpy(zero_copy_only=False)]
            for index in (*missing.tolist(), *np.setdiff1d(np.arange(len(chunk)), there).tolist()):
                wrong.setdefault(index, Rejection(index, "MissingRequired", text))
        good = ~np.isin(decoded.kept, np.array([*wrong], np.int64))
        rows = pa.Table.from_arrays(columns, schema=self._schema).filter(pa.array(good))
        return Decoded(rows, decoded.kept[good], [wrong[index] for index in sorted(wrong)])

    def _column(self, name: str, rows: pa.Table) -> pa.Array:
        own = rows.column(name).combine_chunks()
        if not self._wrapped:
            return own
        within = pc.struct_field(rows.column("payload").combine_chunks(), name)
        if isinstance(own, pa.ExtensionArray):  # a UUID, which Arrow's functions do not accept
            return pa.ExtensionArray.from_storage(own.type, pc.coalesce(own.storage, within.storage))
        return pc.coalesce(own, within)
