"""Decodes a sample with the proposed declaration, to count the dead letters that the declaration would cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frazil.infer.sample import Sample
from frazil.ingest.beside_value import value_schema
from frazil.ingest.changes import change_schema
from frazil.ingest.chunk import Chunk
from frazil.ingest.coordinates import record_schema
from frazil.ingest.decode import Decoded
from frazil.ingest.formats import decoder
from frazil.spec import iceberg
from frazil.spec.formats import plain_format
from frazil.spec.load import validate_stream

_ANY_BROKER = "localhost:9092"


def dead_letters(declared: Mapping[str, Any], sample: Sample) -> Counter[str]:
    """Count the sample's records that would become dead letters, by error class. Tombstones are included.

    Raises RegistryUnavailable.
    """
    return Counter(rejection.error_class for rejection in decoded(declared, sample).rejections)


def decoded(declared: Mapping[str, Any], sample: Sample) -> Decoded:
    """Decode the sample's records with a declaration. Raises RegistryUnavailable."""
    source = {"bootstrap-servers": _ANY_BROKER, **declared["source"]}
    spec = validate_stream({**declared, "source": source}, Path(f"{declared['name']}.yaml"))
    schema = iceberg.schema(spec)
    wanted = change_schema(schema, spec.key) if spec.mode == "upsert" else schema
    filled = value_schema(record_schema(wanted, spec.coordinates), spec.beside_value)
    units = {schema.find_field(name).field_id: unit for name, unit in spec.units.items()}
    values = [record.value for record in sample.records]
    return decoder(plain_format(spec.value_format), filled, units)(Chunk.of_values(values))
