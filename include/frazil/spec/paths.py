"""Parses paths that lead to a field of a record, such as `payload.user.id` or `items[0].sku`."""

from __future__ import annotations

import re

FieldPath = tuple[str | int, ...]
"""The steps to a field: names of fields, and indexes in lists."""

_STEP = re.compile(r"\.?(?P<name>(?:[^.\[\]\\]|\\[.\[\]\\])+)|\[(?P<index>[0-9]{1,4})\]")
"""Matches a name with its leading dot, or an index in brackets."""
MAX_INDEX = 9999
_ALLOWED_FORMS = r"write field, outer.inner or items[0].inner, and \. for a dot within a name"


def parse_path(text: str) -> FieldPath:
    """Parse a path. Raises ValueError with the allowed forms."""
    path: list[str | int] = []
    position = 0
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None and re.match(r"\[-?[0-9]+\]", text[position:]):
            raise ValueError(f"has an index that is not between 0, the first element, and {MAX_INDEX:,}")
        if step is None or ((step["index"] is None) and text.startswith(".", position) is not bool(path)):
            raise ValueError(f"has a name with an empty part, or a bracket without an index; {_ALLOWED_FORMS}")
        path.append(re.sub(r"\\(.)", r"\1", step["name"]) if step["index"] is None else int(step["index"]))
        position = step.end()
    if not path or isinstance(path[0], int):
        raise ValueError(f"does not begin with a name; {_ALLOWED_FORMS}")
    if any(isinstance(name, str) and (not name.strip() or set(name) & set('"\\') or min(name) < " ") for name in path):
        raise ValueError("has a name that is blank or contains a quote, a backslash or a control character")
    return tuple(path)


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a path without indexes. Raises ValueError for an index or a malformed path."""
    path = parse_path(text)
    if not all(isinstance(name, str) for name in path):
        raise ValueError("has an index, but each part must be an object; write field, or outer.inner")
    return tuple(map(str, path))
