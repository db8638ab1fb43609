"""The tables of a route as the page shows them."""

from __future__ import annotations

from frazil.operations.table_view import MAX_ROUTED_TABLES, RoutedTable, RoutedTables, search_routed
from frazil.status.state import Level


def test_only_some_of_thousands_of_tables_are_shown_and_a_search_finds_the_others():
    names = [f"demo.orders_of_{n:04}" for n in range(2000)]
    shown = search_routed(names, "")
    assert shown is not None
    assert ([one.name for one in shown.tables], shown.found, shown.total) == (names[:MAX_ROUTED_TABLES], 2000, 2000)
    assert search_routed(names, "DEMO 1234") == RoutedTables((RoutedTable("demo.orders_of_1234"),), 1, 2000)
    assert search_routed(names, "nothing") == RoutedTables((), 0, 2000)
    assert search_routed((), "") is None


def test_tables_with_a_problem_are_listed_first_including_missing_ones_with_their_streams_mark():
    names = [f"demo.orders_of_{n:04}" for n in range(2000)]
    problems = {"demo.orders_of_1999": "3 rows behind", "demo.orders_of_gone": "missing"}
    shown = search_routed(names, "", problems=problems)
    assert shown is not None
    assert shown.tables[:3] == (
        RoutedTable("demo.orders_of_1999", "3 rows behind", Level.TROUBLE),
        RoutedTable("demo.orders_of_gone", "missing", Level.TROUBLE),
        RoutedTable("demo.orders_of_0000"),
    )
    assert shown.total == 2001
    found = search_routed(names, "missing", problems=problems, level=Level.BROKEN)
    assert found == RoutedTables((RoutedTable("demo.orders_of_gone", "missing", Level.BROKEN),), 1, 2001)
