"""Models of the sensitive fields in a stream's records, and of their protection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from frazil.spec import types
from frazil.spec.values import IntegerBounds, Model, Problem, YamlForm, suggest_names

if TYPE_CHECKING:
    from frazil.spec.model import StreamSpec


class Protection(Model):
    """How one field is protected: the value of `as`, or a mapping."""

    short_form = "as"
    as_: Literal["mask", "hash", "tokenize", "drop"] = Field(alias="as")
    """`mask`: `****` instead of the text. `hash`: HMAC-SHA-256 in hexadecimal. `tokenize`: encrypted; equal texts stay
    equal, and the secret decrypts them. `drop`: the field never becomes a column.
    """
    keep_last: Annotated[int, IntegerBounds(0, 64)] = 0
    """Number of characters that `mask` leaves visible at a text's end. Texts less than twice as long show none."""

    def find_conflicts(self) -> Iterator[str]:
        if self.keep_last and self.as_ != "mask":
            yield f"has keep-last, which is only used with mask, not with {self.as_}; leave it out"


class Sensitive(Model):
    """Values that must not be readable in tables, dead letters and logs."""

    fields: Annotated[Mapping[str, Protection], YamlForm("mapping of fields")] = Field(min_length=1)
    """Protection by column name: `email: hash`, `customer.phone: {as: mask, keep-last: 4}`, `stops.element.street:
    mask`. Fields that stay must be of type `string`.
    """
    secret: str | None = None
    """A reference (`${env:FRAZIL_SECRET}`) to at least 16 characters, for `hash`, `tokenize` and `encrypt`."""
    dead_letters: Literal["omit", "encrypt", "keep"] = "omit"
    """What a dead letter keeps of its record: nothing, everything encrypted with AES-GCM, or everything."""

    @field_validator("fields")
    @classmethod
    def _check_names(cls, value: Mapping[str, Protection]) -> Mapping[str, Protection]:
        if any(not all(part.strip() for part in name.split(".")) for name in value):
            raise ValueError("has a name with an empty part; write column, or column.field")
        return value

    @property
    def kept_fields(self) -> dict[str, Protection]:
        return {name: rule for name, rule in self.fields.items() if rule.as_ != "drop"}

    @property
    def dropped_fields(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(name.split(".")) for name, rule in self.fields.items() if rule.as_ == "drop")

    @property
    def needs_secret(self) -> bool:
        return self.dead_letters == "encrypt" or any(rule.as_ in {"hash", "tokenize"} for rule in self.fields.values())


def problems(spec: StreamSpec) -> Iterator[Problem]:
    if (sensitive := spec.sensitive) is None:
        return
    columns = {column.name: types.parse_type(column.type) for column in spec.columns if column.type}
    if len(columns) < len(spec.columns):
        return
    for name, rule in sensitive.fields.items():
        path, setting = name.split("."), f"sensitive.fields.{name}"
        column_type = types.find_type(columns, path, ignore_case=rule.as_ == "drop")
        if rule.as_ == "drop" and column_type is not None:
            yield Problem(setting, "drop", "cannot be used for a column of the schema; remove the column")
        elif rule.as_ == "drop" and isinstance(types.find_type(columns, path[:1], ignore_case=True), types.Primitive):
            yield Problem(setting, "drop", "cannot be used within a column that is not a struct; remove the column")
        elif rule.as_ != "drop" and column_type is None:
            yield Problem(setting, rule.as_, f"is not a column of the schema{suggest_names(name, columns)}")
        elif rule.as_ != "drop" and str(column_type) != "string":
            text = f"needs a string, but the column is {column_type}; declare it as string, or drop the field"
            yield Problem(setting, rule.as_, text)
    if sensitive.needs_secret and not sensitive.secret:
        yield Problem("sensitive.secret", None, "is missing: hash, tokenize and encrypted dead letters need it")
