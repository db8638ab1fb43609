"""Generates docs/reference/configuration.md from the models, so that it cannot differ from what the loader accepts.

`python -m tests.configuration_page > docs/reference/configuration.md` updates the page.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from datetime import timedelta
from enum import EnumType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from frazil.spec.column import Column
from frazil.spec.formats import FORMATS, JsonFormat
from frazil.spec.model import StreamSpec
from frazil.spec.property_rules import SET_BY_FRAZIL
from frazil.spec.units import format_bytes, format_duration
from frazil.spec.values import SIZE_FORM, YamlForm, field_descriptions

_INTRODUCTION = """\
# Configuration

All keys of a stream's file, `include/streams/<stream>.yaml` ([guide](../how-to/declare-a-stream.md)). Defaults follow
after the type, or are bold. Write a duration as `250ms`, `60s` or `1h30m`, a size as `128MiB`, `1GB` or a number of
bytes, a percentage as `50%`, and a time as ISO 8601 with a zone. Mappings have their own sections. `maintenance: off`,
or `off` for a mapping in it, switches it off.
"""

_REFERENCES = """\
## References

`source.bootstrap-servers`, `source.properties`, `source.format.registry`, `sensitive.secret` and `resources.spark` take
references, which are resolved when they are used:

| reference | value |
|---|---|
| `${env:NAME}` | the environment variable; it must be set, and not be empty |
| `${env:NAME:-default}` | the environment variable, or the default if it is unset or empty |
| `${airflow:connection.field}` | `host`, `login`, `password`, … or an extra of `AIRFLOW_CONN_<CONNECTION>` |

Secrets, such as `sasl.password`, must be references without a default.
"""


def render() -> str:
    """Return the page as Markdown."""
    parts = [_INTRODUCTION, *_section("A stream", StreamSpec, "", set())]
    parts += _section("A column", Column, "schema.<column>.", set())
    parts += [_refused_properties(), _REFERENCES]
    return "\n".join(parts)


def _section(title: str, model: type[BaseModel], prefix: str, written: set[str]) -> Iterator[str]:
    """Yield a table of the model's own keys, then a section for each nested model that has none yet."""
    written.add(title)
    nested: list[tuple[str, type[BaseModel]]] = []
    rows, again = [], []
    meanings = field_descriptions(model)
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias}"
        nested += _nested(field, key)
        if (model is Column and field.alias == "name") or (field.alias == "type" and model in FORMATS.values()):
            continue  # the mapping's key is the column's name, and the heading has the format's type
        row = f"| `{key}` | {_value(field)} | {meanings.get(name, '')} |"
        if row in written:
            again.append(f"`{key}`")
        elif field.alias != "enabled" and (_value(field) != "mapping" or prefix.startswith("source.")):
            rows.append(row)  # the introduction has `enabled`; a mapping has a section
        written.add(row)
    yield f"## {title}\n"
    if prefix:
        yield f"{(model.__doc__ or '').strip()}\n"
    if rows:
        yield "\n".join(["| key | value | meaning |", "|---|---|---|", *rows, ""])
    if again:
        yield f"As above: {', '.join(again)}.\n"
    for key, inner in nested:
        if (heading := f"`{key}`") not in written:
            yield from _section(heading, inner, f"{key.split(':')[0]}.", written)


def _nested(field: FieldInfo, key: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the models that a field's value can have, each with its heading."""
    if field.discriminator == "type":
        yield from ((f"{key}: {{type: {name}}}", model) for name, model in FORMATS.items())
    elif (model := _model(field)) is not None:
        yield key, model


def _model(field: FieldInfo) -> type[BaseModel] | None:
    annotation = next((part for part in get_args(field.annotation) if part is not type(None)), field.annotation)
    if get_origin(field.annotation) is tuple and annotation is Column:
        return None  # has its own section
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _value(field: FieldInfo) -> str:
    """Return type and default: `boolean, true`, or the default in bold if the type lists all values."""
    kind, default = _type(field), _default(field)
    choices = kind.split(", ")
    if default in choices:
        return ", ".join(f"**{choice}**" if choice == default else choice for choice in choices)
    return f"{kind}, {default}" if default.strip("`") else kind


def _type(field: FieldInfo) -> str:
    inside = (item for part in get_args(field.annotation) for item in getattr(part, "__metadata__", ()))
    written = next((item for item in (*field.metadata, *inside) if isinstance(item, YamlForm)), None)
    return written.words.partition(": ")[0] if written else _words(field.annotation)


def _words(annotation: Any) -> str:
    simple = {str: "text", int: "integer", float: "number", bool: "boolean"}
    if annotation in simple:
        return simple[annotation]
    if get_origin(annotation) is Annotated:
        return _words(get_args(annotation)[0])
    if get_origin(annotation) is Literal or isinstance(annotation, EnumType):
        return ", ".join(f"`{choice}`" for choice in get_args(annotation) or annotation)
    if get_origin(annotation) in {Union, types.UnionType}:
        return ", ".join(_words(part) for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) is tuple:
        return f"list of {_words(get_args(annotation)[0])}"
    return "mapping"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, JsonFormat):
        return f"`{value.type}`"
    if isinstance(value, timedelta):
        return f"`{format_duration(value)}`"
    if SIZE_FORM in field.metadata:
        return f"`{format_bytes(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, str | int) else ""


def _refused_properties() -> str:
    rows = [f"| `{key}` | {reason} |" for key, reason in SET_BY_FRAZIL.items()]
    heading = "## librdkafka properties that frazil sets itself\n"
    return "\n".join([heading, "| property | why |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    print(render(), end="")
