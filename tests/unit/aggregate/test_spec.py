"""Declarations of an aggregation, and the error message for each mistake."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from frazil.aggregate.spec import AGGREGATIONS, find_aggregation, load_aggregation, parse_day
from frazil.errors import SpecError
from frazil.spec.last_valid import find_declared

CHECKOUT = Path(__file__).resolve().parents[3]
SALES = """
source: shop.sales
event-time: at
target: shop.sales_per_day
sql: SELECT count(*) AS sales FROM source_day
"""


def declare(folder: Path, text: str, name: str = "sales") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def test_four_keys_declare_a_complete_aggregation_named_after_its_file(tmp_path: Path) -> None:
    spec = load_aggregation(declare(tmp_path, SALES))
    assert (spec.name, spec.source, spec.event_time, spec.target) == ("sales", "shop.sales", "at", "shop.sales_per_day")


def test_the_demos_aggregation_is_valid() -> None:
    spec = find_aggregation(CHECKOUT / "include" / "aggregations", "flights_per_day")
    assert (spec.source, spec.event_time) == ("demo.flights", "scheduled_departure")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SALES.replace("event-time", "event-tmie"), "event-tmie: is an unknown key; did you mean event-time?"),
        (SALES.replace("event-time: at", ""), "event-time: is missing"),
        (SALES.replace("shop.sales_per_day", "sales"), "target: 'sales' is not a table identifier; write namespace."),
        (SALES.replace("shop.sales_per_day", "shop.sales"), "source and target are the same table"),
        (SALES + "name: other", "name: is not allowed, because an aggregation is named after its file"),
        (SALES.replace("SELECT count(*) AS sales FROM source_day", "''"), "sql: '' is empty"),
        ("source: {", "line 2, column 1: "),
    ],
)
def test_an_error_names_file_key_and_value(tmp_path: Path, text: str, problem: str) -> None:
    path = declare(tmp_path, text)
    with pytest.raises(SpecError) as refused:
        load_aggregation(path)
    assert f"{path}: {problem}" in str(refused.value)


@pytest.mark.usefixtures("frazil_home")
def test_a_briefly_missing_or_invalid_aggregation_file_keeps_its_last_valid_declaration(tmp_path: Path) -> None:
    path = declare(tmp_path, SALES)
    (found,) = find_declared(tmp_path, AGGREGATIONS, now_ms=0)
    path.write_text("source: {")
    assert find_aggregation(tmp_path, "sales") == found.spec
    path.unlink()
    assert find_aggregation(tmp_path, "sales") == found.spec
    with pytest.raises(SpecError, match="no aggregation 'sale' in"):
        find_aggregation(tmp_path, "sale")


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        load_aggregation(declare(tmp_path, "sources: shop.sales"))
    assert len(str(refused.value).splitlines()) == 5


def test_an_unknown_aggregation_name_is_answered_with_the_known_names(tmp_path: Path) -> None:
    declare(tmp_path, "source: {", name="broken")
    declare(tmp_path, SALES)
    assert find_aggregation(tmp_path, "sales").name == "sales"
    with pytest.raises(SpecError, match=r"no aggregation 'sale' in .*; did you mean sales\? known: broken, sales"):
        find_aggregation(tmp_path, "sale")


def test_a_file_name_that_is_not_a_valid_aggregation_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the file's name is the aggregation's"):
        load_aggregation(declare(tmp_path, SALES, name="Sales Per Day"))


@pytest.mark.parametrize("text", [None, "", "2013-12-30T15", "30.12.2013", "2013-02-30", "2013-12-30 "])
def test_an_invalid_day_is_refused(text: str | None) -> None:
    assert parse_day("2013-12-30") == date(2013, 12, 30)
    with pytest.raises(SpecError, match="write YYYY-MM-DD"):
        parse_day(text)
