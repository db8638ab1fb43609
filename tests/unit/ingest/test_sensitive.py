"""No sensitive value is readable in staged files, journals or messages."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow

from frazil.errors import SpecError
from frazil.ingest.chunk import pack_headers
from frazil.ingest.contract import OffsetRange, RecordFile, StageContext, StageResult
from frazil.ingest.sealing import OMITTED, SEALED, Sealer, Unsealer, name_part
from frazil.ingest.sensitive import Protector
from frazil.ingest.stage import UNWRITABLE
from frazil.ingest.table_writer import TableWriter
from frazil.spec import iceberg
from frazil.spec.formats import dump_portable_format
from frazil.spec.load import validate_stream
from frazil.spec.model import StreamSpec
from frazil.stream.stage_context import sensitive_fields
from tests.unit.ingest.test_stage import Record, World, rows

CANARY = "canary-7731"
SECRET = "a secret of the tests"
TS = '"ts": "2024-03-09T16:00:00Z"'


def spec_of(
    fields: dict[str, Any], schema: dict[str, str], *, dead_letters: str = "omit", form: Any = "json", **more: Any
) -> StreamSpec:
    declared = {
        "name": "s",
        "source": {"bootstrap-servers": "x:1", "topics": "t", "format": form},
        "table": "a.b",
        "schema": {"ts": "timestamptz not null", **schema},
        "event-time": "ts",
        "complete": "none",
        "sensitive": {"fields": fields, "secret": "${env:TEST_SECRET}", "dead-letters": dead_letters},
        **more,
    }
    return validate_stream(declared, Path("s.yaml"))


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> Sealer:
    monkeypatch.setenv("TEST_SECRET", SECRET)
    return Sealer(SECRET)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: Sealer) -> Callable[[StreamSpec], World]:  # noqa: ARG001
    return lambda spec: World(tmp_path, spec, monkeypatch)


def context(world: World) -> StageContext:
    return replace(
        world.context(),
        format=dump_portable_format(world.spec.value_format),
        key_header_columns=world.spec.key_header_columns,
        sensitive=sensitive_fields(world.spec, iceberg.table_schema(world.spec), {}),
    )


def staged(world: World, records: Sequence[Record]) -> StageResult:
    return world.stage(records, context(world))


def everything(world: World, result: StageResult) -> bytes:
    """Return everything that a task leaves: its uncompressed files, and its result."""
    tables = [pq.read_table(path) for path in sorted(world.files())]
    return pickle.dumps([table.to_pylist() for table in tables]) + json.dumps(result.to_json()).encode()


def test_texts_are_masked_hashed_and_tokenized_at_every_level(world: Callable[..., World], secret: Sealer):
    spec = spec_of(
        {
            "email": "hash",
            "phone": {"as": "mask", "keep-last": 4},
            "name": "mask",
            "card": "tokenize",
            "home.street": "mask",
            "stops.element.street": "hash",
            "tags.value": "tokenize",
            "ssn": "drop",
        },
        {
            "email": "string",
            "phone": "string",
            "name": "string",
            "card": "string",
            "home": "struct<street: string, city: string>",
            "stops": "list<struct<street: string, n: int>>",
            "tags": "map<string, string>",
        },
    )
    value = {
        "ts": "2024-03-09T16:00:00Z",
        "email": "a@b.c",
        "phone": "+31 20 1234567",
        "name": "Ånn",
        "card": "4111",
        "home": {"street": "Damrak 1", "city": "Amsterdam"},
        "stops": [{"street": "x", "n": 1}, {"street": None, "n": 2}, None, {"street": "y", "n": 3}],
        "tags": {"a": "x", "b": None},
        "ssn": CANARY,
    }
    short = {"ts": value["ts"], "phone": "1234567", "home": {"city": "Delft"}, "stops": [], "card": ""}
    land = world(spec)
    result = staged(land, [Record(json.dumps(v).encode()) for v in (value, short, {"ts": value["ts"]})])
    first, second, third = (row for _, row in sorted(rows(result, "main").items()))
    assert first["email"] == secret.hash_text("a@b.c")
    assert len(first["email"]) == 64
    assert (first["phone"], first["name"]) == ("****4567", "****")
    assert secret.decrypt_token(first["card"]) == "4111"
    assert first["home"] == {"street": "****", "city": "Amsterdam"}
    hashed = [secret.hash_text(street) for street in "xy"]
    assert first["stops"] == [
        {"street": hashed[0], "n": 1},
        {"street": None, "n": 2},
        None,
        {"street": hashed[1], "n": 3},
    ]
    assert first["tags"] == [("a", secret.tokenize("x")), ("b", None)]
    assert second["phone"] == "****"
    assert (second["home"], second["stops"]) == ({"street": None, "city": "Delft"}, [])
    assert secret.decrypt_token(second["card"]) == ""
    assert [third[name] for name in ("email", "home", "stops", "tags")] == [None] * 4
    assert CANARY.encode() not in everything(land, result)


BROKEN = [
    f'{{{TS}, "email": "{CANARY}"',  # cut
    f'{{{TS}, "n": "{CANARY}"}}',
    f'{{{TS}, "email": "{CANARY}", "email": "{CANARY}"}}',
    f'{{"ts": "{CANARY}"}}',
    f'{{"ts": "9999-99-99 {CANARY}"}}',
    f'{{"email": "{CANARY}"}}',  # no event time
    f'{{{TS}, "email": ["{CANARY}"]}}',
    f'{{{TS}, "email": "{CANARY}\\ud800"}}',
    f'{{{TS}, "price": "{CANARY}"}}',
    f'{{{TS}, "day": "{CANARY}"}}',
    f'"{CANARY}"',
    f"{CANARY}",
    f"[{CANARY}]",
    "",
]
SCHEMA = {"email": "string", "n": "int", "price": "decimal(9, 2)", "day": "date"}


@pytest.mark.parametrize("dead_letters", ["omit", "encrypt"])
@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("json", BROKEN),
        (
            {"type": "csv", "delimiter": ";"},
            [f"2024-03-09T16:00:00Z;x;{CANARY};1;2024-01-01", f"{CANARY};a;1;1;", f"{CANARY}"],
        ),
    ],
)
def test_an_undecodable_record_is_reported_and_stored_without_sensitive_values(
    world: Callable[..., World], form: Any, values: list[str], dead_letters: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    land = world(spec_of({"email": "hash"}, SCHEMA, dead_letters=dead_letters, form=form))
    result = staged(land, [Record(v.encode(), key=CANARY.encode()) for v in values])
    found = rows(result, "dead-letters")
    assert len(found) == len(values)
    assert CANARY.encode() not in everything(land, result)
    assert CANARY not in caplog.text
    for offset, row in found.items():
        for part, raw in (("key", CANARY.encode()), ("value", values[offset - 100].encode())):
            if dead_letters == "omit":
                assert row[part] == OMITTED
            else:
                assert row[part].startswith(SEALED)
                assert Unsealer("${env:TEST_SECRET}", sensitive=True)(row[part], name_part("t", 0, offset, part)) == raw


def test_keys_and_headers_as_columns_are_protected_too(world: Callable[..., World], secret: Sealer):
    source = {"bootstrap-servers": "x:1", "topics": "t", "key": {"format": "string", "column": "who"}}
    land = world(spec_of({"who": "hash"}, {"who": "string", "n": "int"}, source=source))
    value = f"{{{TS}}}".encode()
    result = staged(land, [Record(value, key=CANARY.encode()), Record(value, key=b"\xff" + CANARY.encode())])
    assert rows(result, "main")[100]["who"] == secret.hash_text(CANARY)
    assert list(rows(result, "dead-letters")) == [101]
    assert CANARY.encode() not in everything(land, result)


def test_values_of_headers_are_not_kept(world: Callable[..., World]):
    land = world(spec_of({"email": "hash"}, SCHEMA))
    protect = Protector(context(land))
    assert protect.dead_letter_value(CANARY.encode(), "p") == OMITTED
    assert protect.dead_letter_value(None, "p") is None
    assert pack_headers([("a", OMITTED)]) is not None
    assert Unsealer(None, sensitive=False)(SEALED + b"x", "here") == SEALED + b"x", "anybody can send it"


def test_an_error_of_a_library_is_reported_without_its_text(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    land = world(spec_of({"email": "hash"}, SCHEMA))
    add, dry_write = TableWriter.add, TableWriter.dry_write

    def failing(self: TableWriter, table: pa.Table) -> Any:
        if "n" in table.column_names and 13 in table["n"].to_pylist():
            raise ValueError(f"cannot write {CANARY}")
        return dry_write(self, table)

    def adding(self: TableWriter, table: pa.Table) -> None:
        if "n" in table.column_names and 13 in table["n"].to_pylist():
            raise ValueError(f"cannot write {CANARY}")
        add(self, table)

    monkeypatch.setattr(TableWriter, "add", adding)
    monkeypatch.setattr(TableWriter, "dry_write", failing)
    result = staged(land, [Record(f'{{{TS}, "n": {n}, "email": "{CANARY}"}}'.encode()) for n in (1, 13)])
    assert [row["error_class"] for row in rows(result, "dead-letters").values()] == [UNWRITABLE]
    assert CANARY.encode() not in everything(land, result)
    assert CANARY not in caplog.text
    monkeypatch.setattr(TableWriter, "dry_write", lambda *_: None)
    with pytest.raises(RuntimeError, match="ValueError: the text is withheld") as raised:
        staged(land, [Record(f'{{{TS}, "n": 13}}'.encode())])
    assert CANARY not in str(raised.value)


def test_no_row_is_written_if_a_sensitive_value_might_stay_unprotected(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
):
    land = world(spec_of({"email": "hash"}, SCHEMA))
    record = Record(f'{{{TS}, "email": "{CANARY}"}}'.encode())
    of = context(land)
    renamed = replace(of, sensitive={**of.sensitive, "fields": {"mail": of.sensitive["fields"]["email"]}})
    with pytest.raises(SpecError, match="'mail' is not a column of the table"):
        land.stage([record], renamed)
    monkeypatch.setenv("TEST_SECRET", "too short")
    with pytest.raises(SpecError, match="shorter than 16 characters"):
        land.stage([record], of)
    monkeypatch.delenv("TEST_SECRET")
    with pytest.raises(SpecError, match=r"sensitive\.secret: the environment variable TEST_SECRET is not set"):
        land.stage([record], of)
    assert not land.files()


@pytest.mark.parametrize("dropped", ["phone", "PHONE", "home.Street", "old_phone"])
def test_dropping_a_field_that_the_table_has_fails_the_task(world: Callable[..., World], dropped: str):
    land = world(spec_of({"email": "hash"}, {"email": "string", "phone": "string", "home": "struct<street: string>"}))
    of = context(land)
    phone = iceberg.table_schema(land.spec).find_field("phone").field_id
    of = replace(of, sensitive={**of.sensitive, "dropped": [dropped]}, aliases={"old_phone": phone})
    with pytest.raises(SpecError, match="is dropped, but the table has the column"):
        land.stage([Record(f'{{{TS}, "phone": "{CANARY}"}}'.encode())], of)
    assert not land.files()


def test_a_dead_letter_value_that_resembles_an_encrypted_one_is_not_kept(world: Callable[..., World]):
    protect = Protector(context(world(spec_of({"email": "hash"}, SCHEMA, dead_letters="keep"))))
    assert protect.dead_letter_value(SEALED + b"x", "p") == protect.dead_letter_value(OMITTED, "p") == OMITTED
    assert protect.dead_letter_value(b"frazil", "p") == b"frazil"


def test_a_result_names_the_secret_that_hashed_its_values(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch):
    def fingerprint(text: str) -> str:
        monkeypatch.setenv("TEST_SECRET", text)
        land = world(spec_of({"email": "hash"}, {"email": "string"}))
        return staged(land, [Record(f'{{{TS}, "email": "a@b"}}'.encode())]).secret

    found = [fingerprint(text) for text in (SECRET, f"another {SECRET}", SECRET)]
    assert found[0] == found[2] != found[1]
    assert found[0] not in SECRET.encode().hex()


def test_rows_of_parquet_are_refused(world: Callable[..., World], tmp_path: Path):
    land = world(spec_of({"email": "hash"}, {"email": "string"}))
    of = context(land)
    schema = schema_to_pyarrow(iceberg.table_schema(land.spec))
    row = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 100, "email": CANARY}
    row["ts"] = row["kafka_timestamp"] = np.datetime64("2024-01-01", "us").item()
    path = tmp_path / "rows" / "some.parquet"
    path.parent.mkdir()
    pq.write_table(pa.Table.from_pylist([row], schema=schema.remove_metadata()), path)
    file = RecordFile(str(path), path.stat().st_size, 0, (OffsetRange("t", 0, 100, 101),))
    with pytest.raises(SpecError, match="rows of Parquet files cannot be backfilled into a stream with sensitive"):
        land.stage([Record(None)], replace(of, files=(file,)))


@given(st.text(max_size=40), st.text(max_size=40))
def test_different_texts_have_different_tokens_and_hashes(one: str, other: str):
    secret = Sealer(SECRET)
    assert secret.decrypt_token(secret.tokenize(one)) == one
    assert (
        (secret.tokenize(one) == secret.tokenize(other))
        == (one == other)
        == (secret.hash_text(one) == secret.hash_text(other))
    )
    with pytest.raises(ValueError, match="not a token of this secret"):
        Sealer(SECRET + "!").decrypt_token(secret.tokenize(one))


@given(st.binary(max_size=200))
def test_an_encrypted_value_can_be_decrypted_only_at_its_place_with_its_secret(value: bytes):
    secret = Sealer(SECRET)
    sealed = secret.encrypt(value, "here")
    assert secret.decrypt(sealed, "here") == value
    for wrong, place in ((secret, "there"), (Sealer(SECRET + "!"), "here")):
        with pytest.raises(SpecError, match=r"not encrypted with the current sensitive\.secret"):
            wrong.decrypt(sealed, place)
    with pytest.raises(SpecError, match=r"not encrypted with the current sensitive\.secret"):
        secret.decrypt(sealed[:-1], "here")


def test_no_sensitive_field_lands_in_the_rest_however_its_name_is_written(world: Callable[..., World]):
    spec = spec_of(
        {"email": "hash", "home.street": "mask", "stops.element.street": "mask", "tags.key": "hash", "ssn": "drop",
         "card.number": "drop"},
        {"email": "string", "home": "struct<street: string>", "stops": "list<struct<street: string>>",
         "tags": "map<string, struct<n: int>>", "r": "string"},
        rest="r",
    )  # fmt: skip
    hidden = {"EMAIL": CANARY, "Email": [CANARY], "Home": {"street": CANARY}, "ssn": CANARY, "SSN": {"x": CANARY}}
    nested = {"home": {"STREET": CANARY, "zip": "z1"}, "stops": [{"Street": CANARY, "zip": "z2"}]}
    of_map = {"tags": {CANARY: {"n": 1, "more": 2}}, "card": {"number": CANARY, "kind": "debit"}}
    value = {"ts": "2024-03-09T16:00:00Z", **hidden, **nested, **of_map, "zip": "z3"}
    texts = [json.dumps(value), json.dumps(value).replace("Email", "\\u0045mail").replace("ssn", "\\u0073sn")]
    land = world(spec)
    result = staged(land, [Record(text.encode()) for text in texts])
    assert CANARY.encode() not in everything(land, result)
    kept = '{"home": {"zip": "z1"},"stops": [{"zip": "z2"}],"zip": "z3"}'
    assert [row["r"] for row in rows(result, "main").values()] == [kept, kept]
