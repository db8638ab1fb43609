"""YAML as YAML 1.2 reads it: `on` and `no` are words, a time is text, a key that stands twice is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from frazil.errors import SpecError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StreamLoader(_Loader):  # type: ignore[misc]
    """PyYAML's safe loader without the surprises of YAML 1.1."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(str(key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


_BOOL = "tag:yaml.org,2002:bool"
_StreamLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_BOOL, "tag:yaml.org,2002:timestamp"}]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_StreamLoader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))


def read_mapping(path: Path) -> dict[str, Any]:
    """The file's one mapping. Raises SpecError naming the file, and line and column where it is not YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    try:
        loaded = yaml.load(text, Loader=_StreamLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SpecError(f"{path}: {where}{error.problem or 'is not YAML'}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: is not YAML: {error}") from None
    if not isinstance(loaded, dict):
        raise SpecError(f"{path}: holds no mapping; a stream begins with name: …")
    return loaded
