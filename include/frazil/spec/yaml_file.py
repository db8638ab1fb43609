"""Reads YAML by the rules of YAML 1.2: `on` and `no` are words, a time is text, a duplicate key is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from frazil.errors import SpecError
from frazil.spec.file_cache import FileCache

MOST_BYTES = 4 * 2**20
"""No declaration that a person writes is larger."""

MOST_NESTED = 50
"""PyYAML's C code recurses, so deep nesting would crash the process."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StreamLoader(_Loader):  # type: ignore[misc]
    """PyYAML's safe loader without YAML 1.1's booleans and timestamps."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is text, no list or mapping", key.start_mark)
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} appears twice", key.start_mark
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


def read_mapping(path: Path) -> Mapping[str, Any]:
    """The mapping in a file. It is shared and must not be changed.

    Raises SpecError naming the file, with line and column if it is not YAML.
    """
    return _FILES.get(path)


def _read(path: Path) -> Mapping[str, Any]:
    text = _text(path)
    try:
        _check_depth(text)
        loaded = yaml.load(text, Loader=_StreamLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
        problem = error.problem or "is not YAML"
        raise SpecError(f"{path}: {where}{problem}{_hint(problem, line)}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # PyYAML's constructors raise these
        raise SpecError(f"{path}: is not YAML that can be read: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        raise SpecError(f"{path}: holds no mapping; begin a stream with name: …")
    return loaded


def _text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise SpecError(
                f"{path}: has {size:,} bytes, and a declaration at most {MOST_BYTES:,}; is it another file?"
            )
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    except OSError as error:  # as the cause, so that `FileCache` does not keep it
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from error


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MOST_NESTED:
            raise yaml.YAMLError(f"it is nested over {MOST_NESTED} levels deep")


def _hint(problem: str, line: str) -> str:
    """What to do, if the line tells."""
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in problem:
        return "; indent with spaces, because YAML allows no tabs"
    if "cannot start any token" in problem:
        return "; quote a value that begins with such a character"
    if re.search(r"\b(struct|list|map)\s*<", line):
        return '; quote the type, because it holds ": " or ",": "list<struct<a: int>>"'
    if "mapping values are not allowed" in problem:
        return '; quote a value that holds ": ", or begin a new line before the second key'
    return ""


_FILES = FileCache(_read)
