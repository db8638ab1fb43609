"""Declarations with `mode: upsert`, and the error message for each mistake."""

from __future__ import annotations

import pytest

from frazil.spec import iceberg
from frazil.spec.model import StreamSpec
from frazil.spec.rules import find_problems
from frazil.spec.values import Problem
from frazil.table.declared_tables import declared_table

ORDERS = {
    "name": "orders",
    "source": {"topics": ["orders"], "format": "json", "bootstrap-servers": "127.0.0.1:1", "key": {"column": "ref"}},
    "table": "shop.orders",
    "schema": {
        "id": "long not null",
        "ref": "string not null",
        "at": "timestamptz",
        "op": "string",
        "gone": "boolean",
        "price": "double not null",
        "tags": "list<string>",
        "note": "string",
    },
    "event-time": "at",
}


def found(**extra: object) -> dict[str, str]:
    """The problems by key."""
    declared = {name.replace("_", "-"): value for name, value in extra.items()}
    given = {**ORDERS, "mode": "upsert", **declared}
    try:
        spec = StreamSpec.model_validate(given)
    except ValueError as error:
        context = error.errors()[0].get("ctx", {}).get("error")  # type: ignore[attr-defined]
        return {p.key: p.message for p in getattr(context, "problems", (Problem("?", None, str(error)),))}
    assert find_problems(spec) == ()
    return {}


@pytest.mark.parametrize(
    "declared",
    [
        {"key": "id"},
        {"key": ["id", "ref"], "order_by": "at", "merge": "copy-on-write"},
        {"key": ["id"], "delete": {"column": "op", "values": ["d", "D"]}},
        {"key": ["id"], "delete": {"column": "gone", "values": [True]}},
        {"key": ["ref"], "delete": "tombstones"},
        {"key": ["id", "ref"], "delete": "tombstones"},
        {"key": ["ref"], "delete": {"tombstones": True, "column": "op", "values": ["d"]}},
    ],
)
def test_a_valid_upsert_declaration_is_accepted(declared: dict[str, object]) -> None:
    assert found(**declared) == {}


@pytest.mark.parametrize(
    ("declared", "key", "said"),
    [
        ({}, "key", "is missing; mode: upsert needs the columns"),
        ({"key": ["idd"]}, "key.0", "is not a column of the schema; did you mean id?"),
        ({"key": ["price"]}, "key.0", "is a column of type double, which cannot identify rows"),
        ({"key": ["tags"]}, "key.0", "which cannot identify rows"),
        ({"key": ["note"]}, "key.0", "may be null; declare the column `not null`"),
        ({"key": ["id", "id"]}, "key.1", "is named twice"),
        ({"key": "ref", "sensitive": {"fields": {"ref": "mask"}}}, "key.0", "is masked"),
        ({"key": "id", "order_by": "att"}, "order-by", "did you mean at?"),
        ({"key": "id", "order_by": "gone"}, "order-by", "is a column of type boolean; use one of int, long"),
        ({"key": "id", "order_by": "note", "sensitive": {"fields": {"note": "mask"}}}, "order-by", "a different order"),
        ({"key": "id", "delete": {"column": "opp", "values": ["d"]}}, "delete.column", "did you mean op?"),
        ({"key": "id", "delete": {"column": "at", "values": ["d"]}}, "delete.column", "use one of string, int"),
        (
            {"key": "id", "delete": {"column": "op", "values": [True]}},
            "delete.values.0",
            "is not a value of the column op",
        ),
        ({"key": "id", "delete": {"column": "gone", "values": [1]}}, "delete.values.0", "which is boolean"),
        (
            {"key": "id", "delete": "tombstones", "source": {**ORDERS["source"], "format": "csv"}},
            "delete.tombstones",
            "needs the keys of records",
        ),
        ({"key": "id", "distribution": "hash"}, "distribution", "has no effect"),
        (
            {"key": "id", "commit": {"align": "watermark"}, "partition_by": ["day(at)"]},
            "commit.align",
            "keeps rows of open windows",
        ),
    ],
)
def test_an_upsert_declaration_error_names_its_key(declared: dict[str, object], key: str, said: str) -> None:
    assert said in found(**declared)[key]


@pytest.mark.parametrize("alone", [{"key": "id"}, {"order_by": "at"}, {"delete": {"column": "op", "values": ["d"]}}])
def test_upsert_settings_are_refused_in_append_mode(alone: dict[str, object]) -> None:
    ((key, said),) = found(mode="append", **alone).items()
    assert key in {"key", "order-by", "delete"}
    assert "needs mode: upsert" in said


def test_an_append_stream_keeps_its_fingerprint_and_an_upsert_has_one_of_its_own() -> None:
    plain = StreamSpec.model_validate(ORDERS)
    assert plain.fingerprint() == StreamSpec.model_validate({**ORDERS, "mode": "append"}).fingerprint()
    upserts = [{"key": "id"}, {"key": "ref"}, {"key": "id", "order-by": "at"}, {"key": "id", "merge": "copy-on-write"}]
    reported = {StreamSpec.model_validate({**ORDERS, "mode": "upsert", **u}).fingerprint() for u in upserts}
    assert len(reported | {plain.fingerprint()}) == len(upserts) + 1


def test_the_fingerprint_distinguishes_the_defaults_of_append_and_upsert_streams() -> None:
    upsert = {**ORDERS, "mode": "upsert", "key": "id"}
    default, declared = (StreamSpec.model_validate({**upsert, "commit": c}) for c in ({}, {"max-records": 20_000_000}))
    assert (default.max_records, declared.max_records) == (1_000_000, 20_000_000)
    assert default.fingerprint() != declared.fingerprint()


def test_the_key_is_the_identifier_of_the_table_and_stays_required_whatever_evolves() -> None:
    spec = StreamSpec.model_validate({**ORDERS, "mode": "upsert", "key": ["ref", "id"], "evolution": "full"})
    schema = iceberg.table_schema(spec)
    assert schema.identifier_field_names() == {"id", "ref"}
    assert not {"id", "ref"} & declared_table(spec).relaxable


def enveloped(mode: str = "upsert", **more: object) -> dict[str, str]:
    envelope = more.pop("envelope", "debezium")
    source = {**ORDERS["source"], "format": {"type": "json", "envelope": envelope}}  # type: ignore[dict-item]
    return found(mode=mode, source=source, **more)


def test_an_envelope_needs_upsert_mode_and_a_key() -> None:
    assert enveloped(key="id") == {}
    assert "add mode: upsert and a key" in enveloped("append")["source.format.envelope"]
    assert "mark deletes themselves" in enveloped(key="id", delete={"column": "op", "values": ["d"]})["delete"]
    assert enveloped(key="id", evolution="additive") == enveloped(key="id", evolution="full") == {}


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"noe": "source.lsn"}, "did you mean note?"),
        ({"id": "source.lsn"}, "is a key column"),
        ({"at": "position"}, "is a string, but the column is timestamptz"),
        ({"note": "after.note"}, "is not a field of an envelope; it begins with source"),
        ({"note": "source."}, "is not a field of an envelope"),
        ({"note": "op.code"}, "is not a field of an envelope"),
        ({"note": "source", "at": "source.ts_ms"}, "is an object, and the column at reads a field in it"),
        ({"note": "source", "op": "position"}, "is an object, and the column op reads a field in it"),
    ],
)
def test_metadata_of_an_envelope_is_checked(metadata: dict[str, str], said: str) -> None:
    (message,) = enveloped(key="id", envelope={"metadata": metadata}).values()
    assert said in message


@pytest.mark.parametrize("path", ["source.gtid", "source.scn", "transaction.id"])
def test_a_text_column_with_numbers_is_refused_for_ordering_changes(path: str) -> None:
    """`…:10` sorts before `…:9`, so that a newer change would be stale."""
    ordered = {"key": "id", "envelope": {"metadata": {"note": path}}}
    (message,) = enveloped(**ordered, **{"order-by": "note"}).values()
    assert message.endswith("so it cannot be order-by; use a numeric column or position")
    assert enveloped(**ordered, **{"order-by": "at"}) == {}


def test_an_upsert_stream_has_smaller_batches_unless_max_records_is_declared() -> None:
    upsert = {**ORDERS, "mode": "upsert", "key": "id"}
    assert StreamSpec.model_validate(upsert).max_records == 1_000_000
    assert StreamSpec.model_validate({**upsert, "commit": {"max-records": 20_000_000}}).max_records == 20_000_000
    assert StreamSpec.model_validate(ORDERS).max_records == 20_000_000
