"""PyIceberg parses `variant`, and reads the other columns of a file with one."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, IcebergType, LongType, NestedField, StringType, StructType

import frazil.pyiceberg_fixes.data_files  # noqa: F401
from frazil.ingest.arrow_values import VARIANT_GROUP
from frazil.pyiceberg_fixes import VariantType

SCHEMA = Schema(
    NestedField(1, "n", LongType(), required=False),
    NestedField(2, "v", VariantType(), required=False, doc="any value"),
    NestedField(3, "s", StringType(), required=False),
)


def test_a_schema_with_variants_survives_a_json_round_trip() -> None:
    text = SCHEMA.model_dump_json()
    assert '"type":"variant"' in text
    for schema in (Schema.model_validate_json(text), pickle.loads(pickle.dumps(SCHEMA))):
        assert schema == SCHEMA
        assert type(schema.find_type("v")) is VariantType
        assert type(schema.find_type("s")) is StringType
    assert VariantType() != StringType()
    assert str(IcebergType.model_validate("variant")) == "variant"
    with pytest.raises(ValueError, match="Type not recognized: variants"):
        IcebergType.model_validate("variants")


@pytest.mark.parametrize("version", [2, 3])
def test_only_format_version_3_has_the_variant_type(version: int) -> None:
    check = SCHEMA.check_format_version_compatibility
    if version == 3:
        check(3)
        return
    with pytest.raises(ValueError, match="variant"):
        check(2)


TYPED = pa.field("typed_value", pa.int64())


@pytest.mark.parametrize("parts", [[*VARIANT_GROUP], [*VARIANT_GROUP, TYPED], [VARIANT_GROUP.field("metadata"), TYPED]])
def test_a_variant_group_in_a_parquet_file_is_read_as_a_variant(tmp_path: Path, parts: list[pa.Field]) -> None:
    group = pa.struct(parts)
    field_id = {"PARQUET:field_id": "2"}
    fields = [pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "1"}), pa.field("v", group, metadata=field_id)]
    pq.write_table(pa.schema(fields).empty_table(), tmp_path / "f.parquet")
    found = pyarrow_to_schema(pq.read_schema(tmp_path / "f.parquet"), format_version=3)
    assert [type(field.field_type) for field in found.fields] == [LongType, VariantType]


def test_a_struct_with_the_names_of_a_variants_parts_stays_a_struct() -> None:
    parts = [
        pa.field(n, pa.binary(), metadata={"PARQUET:field_id": str(i)}) for i, n in ((2, "metadata"), (3, "value"))
    ]
    schema = pa.schema([pa.field("v", pa.struct(parts), metadata={"PARQUET:field_id": "1"})])
    kind = pyarrow_to_schema(schema).find_type("v")
    assert isinstance(kind, StructType)
    assert {type(field.field_type) for field in kind.fields} == {BinaryType}
