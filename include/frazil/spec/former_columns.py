"""Former names of a table's columns, and the table property that stores them.

Rows that were staged for the default table may use former names of a routed table's columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyiceberg.schema import Schema

from frazil.errors import SchemaIncompatible

PROPERTY = "frazil.former-columns"
"""Table property: JSON that maps each former name to its renamed column's field id, or to null for a dropped column."""

FormerColumns = Mapping[str, int | None]
"""Field ids by former name; None for a dropped column."""


def parse_former_columns(properties: Mapping[str, str]) -> FormerColumns:
    """Parse the table property. Raises SchemaIncompatible if a manual edit made it invalid."""
    text = properties.get(PROPERTY, "{}")
    try:
        found = json.loads(text)
        if all(field is None or type(field) is int for field in found.values()):
            return dict(found)
    except (ValueError, AttributeError):
        pass
    raise SchemaIncompatible(
        f"the table property {PROPERTY} is {text[:200]!r}, which is not a JSON mapping of names to field ids: remove it"
    )


def find_current_name(existing: Schema, field_id: int | None) -> str | None:
    """Return the current name of a top-level column; None if the table has no column with this id."""
    return next((field.name for field in existing.fields if field.field_id == field_id), None)


def find_names_in_rows(
    own: Schema, own_former: FormerColumns, main: Schema, main_former: FormerColumns
) -> dict[str, set[str]]:
    """Map each column of a routed table (`own`) to its other names in rows for the default table (`main`).

    Omits columns without other names.
    """
    ids = {**main_former, **{field.name: field.field_id for field in main.fields}}
    columns = {field.name for field in own.fields}
    found = {}
    for field in own.fields:
        names = {field.name, *(name for name, field_id in own_former.items() if field_id == field.field_id)}
        of_main = {ids.get(name) for name in names} - {None}
        found[field.name] = (names | {name for name, field_id in ids.items() if field_id in of_main}) - columns
    return {name: names for name, names in found.items() if names}
