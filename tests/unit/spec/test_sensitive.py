"""Declarations of sensitive columns, and the error message for each mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyiceberg.types import LongType, StringType, StructType

from frazil.cli.main import frazil
from frazil.errors import SpecError
from frazil.ingest.schema_drift import SchemaDrift
from frazil.ingest.sealing import Sealer
from frazil.spec.load import load_stream
from frazil.stream.evolve import evolve_table, refuse_sensitive_fields
from frazil.table.catalogs import load_catalog
from frazil.table.evolution import Addition, Relaxation
from frazil.table.renamed_columns import ColumnChanges, change_columns
from frazil.table.tables import ensure_table

Declare = Callable[..., Path]
SECRET = "a secret of the tests"
HOME = "struct<street: string, city: string>"


@pytest.mark.parametrize(
    ("sensitive", "message"),
    [
        ({"fields": {}}, "sensitive.fields: is empty"),
        ({"fields": {"carier": "mask"}}, "sensitive.fields.carier: 'mask' is not a column of the schema; did you mean"),
        ({"fields": {"delay": "mask"}}, "sensitive.fields.delay: 'mask' needs a string, but the column is int"),
        ({"fields": {"home": "mask"}}, "sensitive.fields.home: 'mask' needs a string, but the column is struct"),
        ({"fields": {"home.zip": "mask"}}, "sensitive.fields.home.zip: 'mask' is not a column of the schema"),
        (
            {"fields": {"home.street": "drop"}},
            "sensitive.fields.home.street: 'drop' cannot be used for a column of the schema",
        ),
        ({"fields": {"carrier": "hash"}}, "sensitive.secret: is missing: hash, tokenize and encrypted"),
        ({"fields": {"carrier": "mask"}, "dead-letters": "encrypt"}, "sensitive.secret: is missing"),
        (
            {"fields": {"carrier": "hash"}, "secret": "plain words"},
            "sensitive.secret: is a secret, which must not be in the file",
        ),
        ({"fields": {"carrier": "hash"}, "secret": "${vault:x}"}, "sensitive.secret: has ${vault:x}"),
        (
            {"fields": {"carrier": {"as": "hash", "keep-last": 4}}},
            "has keep-last, which is only used with mask, not with hash",
        ),
        ({"fields": {"carrier..x": "mask"}}, "has a name with an empty part"),
        ({"fields": {"carrier": "hide"}}, "sensitive.fields.carrier"),
        ({"fields": {"CARRIER": "drop"}}, "sensitive.fields.CARRIER: 'drop' cannot be used for a column of the schema"),
        (
            {"fields": {"carrier.code": "drop"}},
            "carrier.code: 'drop' cannot be used within a column that is not a struct",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_key(declare: Declare, sensitive: dict[str, Any], message: str) -> None:
    schema = {"carrier": "string not null", "departed": "timestamptz", "delay": "int", "home": HOME}
    with pytest.raises(SpecError) as raised:
        load_stream(declare(schema=schema, sensitive=sensitive))
    assert any(part in str(raised.value) for part in message.split("|")), raised.value
    assert "plain words" not in str(raised.value)


def test_a_stream_without_sensitive_fields_keeps_its_fingerprint(declare: Declare) -> None:
    plain = load_stream(declare())
    assert "sensitive" not in plain.model_dump(exclude_defaults=True)
    masked = load_stream(declare(sensitive={"fields": {"carrier": "mask"}}))
    assert masked.fingerprint() != plain.fingerprint()
    assert masked.sensitive is not None
    assert not masked.sensitive.needs_secret


def test_schema_evolution_never_adds_a_dropped_field() -> None:
    home = StructType()
    requested = [
        Addition(("SSN",), StringType(), None),
        Addition(("ssn", "digits"), StringType(), None),
        Addition(("home",), home, None),
        Addition(("home", "zip"), StringType(), None),
        Addition(("age",), LongType(), None),
        Relaxation(("home", "city")),
        Relaxation(("ssn",)),
    ]
    kept, refused = refuse_sensitive_fields(requested, [("ssn",), ("home", "street")])
    assert kept == requested[3:]
    assert [refusal.path for refusal in refused] == [("SSN",), ("ssn", "digits"), ("home",)]


@pytest.mark.parametrize("declared", ["carrier", "line"])
def test_no_spelling_of_a_protected_columns_names_becomes_a_column(
    declare: Declare,
    declared: str,
    frazil_home: Path,  # noqa: ARG001
) -> None:
    """Whether the declaration follows a renamed column or not."""
    table = ensure_table(load_catalog(None), load_stream(declare()))
    table = change_columns(table, ColumnChanges({"carrier": "line"}, []), fixed={})
    schema = {declared: "string not null", "departed": "timestamptz not null"}
    more = {"evolution": "additive", "sensitive": {"fields": {declared: "mask"}}, "partition_by": [], "sort_by": []}
    spec = load_stream(declare(schema=schema, **more))
    found = evolve_table(table, spec, [SchemaDrift({(name,): "string" for name in ("CARRIER", "Line", "carrier")})])
    assert found.changes == ()
    assert {refusal.path for refusal in found.refused} == {("CARRIER",), ("Line",), ("carrier",)}


def test_frazil_reveal_prints_one_line_per_token(declare: Declare) -> None:
    path = declare(sensitive={"fields": {"carrier": "tokenize"}, "secret": "${env:TEST_SECRET}"})
    tokens = [Sealer(SECRET).tokenize(text) for text in ("AA", "Ü")]
    name = load_stream(path).name

    def call(*arguments: str, secret: str = SECRET, lines: str = "") -> Any:
        command = ["reveal", name, *arguments, "--streams", str(path.parent)]
        return CliRunner().invoke(frazil, command, env={"TEST_SECRET": secret}, input=lines)

    assert call(*tokens).output == call(lines="\n".join(tokens)).output == "AA\nÜ\n"
    wrong = call(tokens[0], secret=SECRET + "!")
    assert (wrong.exit_code, "is not a token of this secret" in wrong.output) == (1, True)
