"""Shows where SQL of a YAML file is wrong: line and column of the file, and the line's text."""

from __future__ import annotations

from pathlib import Path

import yaml

from frazil.errors import SpecError
from frazil.spec.yaml_file import compose


class SqlError(SpecError):
    """SQL that is wrong at an offset. The SQL is the value of a top-level key. Its text is about the SELECT alone."""

    def __init__(self, key: str, sql: str, offset: int, problem: str, hint: str = "") -> None:
        super().__init__(key, sql, offset, problem, hint)
        self._key, self._sql, self._offset, self._problem, self._hint = key, sql, offset, problem, hint

    @property
    def reason(self) -> str:
        return f"{self._key}: {_describe_place(self._sql, self._offset)} of the SELECT: {self._explain()}"

    def describe_in(self, file: Path) -> str:
        """Return the message with the place in the YAML file; in the SELECT alone, if the file has changed."""
        text = file.read_text() if file.is_file() else ""
        index = _find_index(text, self._key, self._sql, self._offset)
        if index is None:
            return f"{file}: {self}"
        return f"{file}: {_describe_place(text, index)}: {self._key}: {self._explain()}"

    def _explain(self) -> str:
        end = self._sql.find("\n", self._offset)
        line = self._sql[self._sql.rfind("\n", 0, self._offset) + 1 : None if end < 0 else end].strip()
        return f"{self._problem}: `{line}`. {self._hint}".rstrip()


def _describe_place(text: str, index: int) -> str:
    return f"line {text.count(chr(10), 0, index) + 1}, column {index - text.rfind(chr(10), 0, index)}"


def _find_index(text: str, key: str, value: str, offset: int) -> int | None:
    """Return where the character of a top-level value is in the file. Indentation and folded lines are skipped."""
    try:
        root = compose(text)
    except yaml.YAMLError:
        return None
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    node = next((node for name, node in pairs if name.value == key and node.value == value), None)
    if node is None:
        return None
    start, end = (
        sum(map(len, text.splitlines(keepends=True)[: m.line])) + m.column for m in (node.start_mark, node.end_mark)
    )
    if node.style in {"|", ">"}:
        start = text.index("\n", start)
    places = [index for index in range(start, end) if not text[index].isspace()][node.style in {"'", '"'} :]
    characters = "".join(value.split())
    if not "".join(text[index] for index in places).startswith(characters):
        return None  # the value has escapes
    return places[min(len("".join(value[:offset].split())), len(characters) - 1)]
