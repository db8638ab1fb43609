"""Generates the JSON Schema of a stream's file, for editors, from the models and the short forms that they accept.
`python -m frazil.spec.json_schema > include/streams/stream.schema.json` updates the exported file.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from frazil.spec.formats import FORMATS
from frazil.spec.model import StreamSpec
from frazil.spec.units import format_duration

_Schema = dict[str, Any]


def stream_schema() -> _Schema:
    """Return the JSON Schema (draft 2020-12) of a stream's YAML file, including short forms."""
    schema = StreamSpec.model_json_schema(by_alias=True, schema_generator=_SchemaGenerator)
    definitions = schema["$defs"]
    _allow_string(definitions, "Table", "`namespace.table`, such as demo.flights")
    _allow_string(definitions, "EventTime", "the event time's column")
    for name in ("Maintenance", "Compaction", "Manifests", "Expiry", "Orphans", "Alerts"):
        definitions[name] = {"anyOf": [{"enum": ["on", "off", True, False]}, definitions[name]]}
    source = definitions["Source"]
    source["required"].remove("bootstrap-servers")  # it may be in _defaults.yaml
    source["oneOf"] = [{"required": ["topics"]}, {"required": ["topic-pattern"]}]
    source["properties"]["topics"].pop("default")
    source["properties"]["topics"] = _string_or_list_schema(source["properties"]["topics"])
    declared = source["properties"]["format"]
    for each in FORMATS:
        of_type = definitions[FORMATS[each].__name__]
        of_type["required"] = ["type"]
        of_type["properties"]["type"] = {"const": each}
    source["properties"]["format"] = {
        "anyOf": [{"enum": list(FORMATS)}, {"oneOf": declared["oneOf"]}],
        "default": "json",
        "description": declared["description"],
    }
    for key in ("partition-by", "sort-by"):
        schema["properties"][key] = _string_or_list_schema(schema["properties"][key])
    schema["properties"]["schema"] = _columns_schema(schema["properties"]["schema"], definitions["Column"])
    source["properties"]["schema"] = _columns_schema(source["properties"]["schema"], definitions["Column"])
    definitions.pop("Column")
    _drop_titles(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A frazil stream", **schema}


class _SchemaGenerator(GenerateJsonSchema):
    """Writes default durations as in a declaration (`60s`), not in ISO 8601."""

    def encode_default(self, dft: Any) -> Any:
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def render() -> str:
    return json.dumps(stream_schema(), indent=2, ensure_ascii=False) + "\n"


def _allow_string(definitions: dict[str, _Schema], name: str, meaning: str) -> None:
    definitions[name] = {"anyOf": [{"type": "string", "description": meaning}, definitions[name]]}


def _string_or_list_schema(listed: _Schema) -> _Schema:
    outer: _Schema = {key: value for key, value in listed.items() if key in {"description", "default"}}
    inner = {key: value for key, value in listed.items() if key not in outer}
    return {"anyOf": [{"type": "string"}, inner], **outer}


def _columns_schema(declared: _Schema, column: _Schema) -> _Schema:
    """Return a schema that accepts a mapping from column names to types, or to mappings with `type`."""
    fields = {key: value for key, value in column["properties"].items() if key != "name"}
    long_form = {"type": "object", "properties": fields, "required": ["type"], "additionalProperties": False}
    short_form = {"type": "string", "description": "type, or: type not null", "examples": ["string", "long not null"]}
    return {
        "type": "object",
        "description": declared["description"],
        "minProperties": 1,
        "additionalProperties": {"anyOf": [short_form, long_form]},
    }


def _drop_titles(node: object) -> None:
    """Remove pydantic's titles, which only repeat each field's name."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for value in node.values():
            _drop_titles(value)
    elif isinstance(node, list):
        for value in node:
            _drop_titles(value)


if __name__ == "__main__":
    print(render(), end="")
