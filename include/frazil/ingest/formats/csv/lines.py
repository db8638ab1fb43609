"""Explains why a CSV line was rejected, and splits it into fields for error texts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from frazil.spec.formats import CsvFormat

VALID, NO_VALUE, EMPTY, WRONG_COUNT, NO_CLOSING_QUOTE, AFTER_QUOTE, SEVERAL_LINES = range(7)
"""Outcome codes that the compiled loop stores for each record."""


class LineReader:
    def __init__(self, declared: CsvFormat) -> None:
        self._columns = declared.columns
        self._quote = declared.quote
        self._delimiter = declared.delimiter.encode()
        delimiter = re.escape(declared.delimiter)
        plain = rf"([^{delimiter}]*)"
        quote = declared.quote and re.escape(declared.quote)
        either = plain if quote is None else rf"(?:{quote}((?:[^{quote}]|{quote}{quote})*+){quote}|{plain})"
        self._field = re.compile(rf"{either}({delimiter}|\Z)")

    def explain_rejection(self, record: bytes | None, outcome: int) -> tuple[str, str]:
        quote, columns = self._quote, self._columns
        texts = {
            NO_VALUE: ("Tombstone", "the message has no value"),
            EMPTY: ("Empty", "the message's value is empty"),
            NO_CLOSING_QUOTE: ("InvalidCsv", f"a field begins with {quote}, but does not end with {quote}"),
            AFTER_QUOTE: ("InvalidCsv", f"text follows a closing {quote}; within a quoted field, write {quote} twice"),
            SEVERAL_LINES: ("InvalidCsv", "the value has several lines: write one record for each line"),
        }
        if outcome in texts:
            return texts[outcome]
        if (record or b"").startswith(b"\x1f\x8b"):
            return "WrongFieldCount", (
                "the value is compressed with gzip (it begins with 1f 8b): write plain CSV, and let the producer's "
                "compression.type compress it"
            )
        found = self._count_fields(record or b"")
        return "WrongFieldCount", f"the line has {found} fields, but {len(columns)} are declared: {', '.join(columns)}"

    def _count_fields(self, record: bytes) -> int:
        if self._quote and self._quote.encode() in record:
            return len(self.fields(record))
        return record.count(self._delimiter) + 1

    def fields(self, record: bytes) -> list[str]:
        text = record.decode(errors="backslashreplace").removesuffix("\n").removesuffix("\r")
        found: list[str] = []
        place = 0
        while match := self._field.match(text, place):
            quoted = match[1] if match.re.groups == 3 else None
            plain = match[match.re.groups - 1]
            found.append(plain if quoted is None else quoted.replace(f"{self._quote}" * 2, f"{self._quote}"))
            place = match.end()
            if not match[match.re.groups]:
                break
        return found

    def quote_field(self, record: bytes, path: Sequence[str | int]) -> str | None:
        return f"the field {self.fields(record)[self._columns.index(str(path[0]))][:64]!r}"
