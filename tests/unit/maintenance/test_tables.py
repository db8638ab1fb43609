"""The tables that are maintained, and those that share a Spark session."""

from __future__ import annotations

from pathlib import Path

from frazil.maintenance.tables import group_by_session, maintained_tables
from tests.strict_streams import load_streams

STREAM = """
name: {name}
source: {{topics: [{name}], bootstrap-servers: "127.0.0.1:1"}}
table: demo.{table}
schema: {{at: timestamptz}}
event-time: at
dead-letters: {{table: demo.{dead_letters}}}
complete: hour
"""


def test_every_maintained_table_shares_a_session_with_its_dead_letters_and_is_in_one_only(tmp_path: Path) -> None:
    for name, table, dead_letters in (
        ("a", "t", "shared"),
        ("b", "u", "shared"),
        ("c", "t", "own"),
        ("d", "v", "d_dl"),
    ):
        (tmp_path / f"{name}.yaml").write_text(STREAM.format(name=name, table=table, dead_letters=dead_letters))
    specs = load_streams(tmp_path).values()
    together = group_by_session(specs)
    assert {name: [table.name for table in tables] for name, tables in together.items()} == {
        "demo.t": ["demo.t", "demo.own", "demo.shared"],
        "demo.u": ["demo.u"],
        "demo.v": ["demo.v", "demo.d_dl"],
        "frazil.signals": ["frazil.signals"],
    }
    assert sorted(table.name for tables in together.values() for table in tables) == [
        table.name for table in maintained_tables(specs)
    ]


def test_without_streams_no_tables_are_maintained() -> None:
    assert group_by_session([]) == {}
