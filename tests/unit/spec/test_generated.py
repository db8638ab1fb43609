"""Files generated from the models are current, and agree with the loader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from frazil.cli import validate as json_schema
from frazil.errors import SpecError
from frazil.spec.load import load_stream
from tests import configuration_page

SCHEMA = Path("include/streams/stream.schema.json")
VALIDATOR = Draft202012Validator(json.loads(SCHEMA.read_text()))


def test_the_exported_schema_is_current() -> None:
    assert SCHEMA.read_text() == json_schema.render(), f"run: python -m frazil.cli.validate > {SCHEMA}"


def test_the_configuration_reference_is_current() -> None:
    file = Path("docs/reference/configuration.md")
    assert file.read_text() == configuration_page.render(), f"run: python -m tests.configuration_page > {file}"


def test_the_schema_is_a_json_schema() -> None:
    Draft202012Validator.check_schema(json.loads(json_schema.render()))


@pytest.mark.parametrize("path", sorted(Path("include/streams").glob("[!_]*.yaml")), ids=lambda path: path.name)
def test_the_schema_accepts_the_streams_of_this_checkout(path: Path) -> None:
    VALIDATOR.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schema": {"departed": {"type": "timestamptz", "required": True, "doc": "x"}}},
        {"event_time": {"column": "departed", "unit": "ms"}, "table": {"identifier": "a.b"}},
        {"partition_by": "day(departed)", "sort_by": ["delay desc"], "commit": {"size": 5, "interval": "1h30m"}},
        {"source": {"bootstrap-servers": "a:1", "topics": "a", "format": {"type": "csv", "delimiter": ";"}}},
        {
            "schema": {"departed": {"type": "timestamptz", "unit": "ms"}, "key": "string", "trace": "binary"},
            "source": {
                "bootstrap-servers": "a:1",
                "topics": "a",
                "format": {"type": "avro", "registry": {"url": "http://r:8081", "timeout": "3s"}},
                "key": {"column": "key"},
                "headers": [{"name": "trace-id", "column": "trace"}],
            },
        },
        {
            "source": {
                "bootstrap-servers": "a:1",
                "topics": ["a"],
                "start": "2013-01-01T00:00:00Z",
                "properties": {"x": 1},
            }
        },
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(declare: Callable[..., Path], changes: dict[str, Any]) -> None:
    path = declare(**changes)
    load_stream(path)
    VALIDATOR.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "changes",
    [
        {"comit": {}},
        {"source": {"bootstrap-servers": "a:1", "topics": "a", "format": "xml"}},
        {"source": {"bootstrap-servers": "a:1", "topics": "a", "format": {"type": "csv", "quot": "'"}}},
        {"commit": {"interval": "soon"}},
        {"commit": {"size": "1XB"}},
        {"schema": {"departed": {"type": "timestamptz", "require": True}}},
        {"schema": {}},
        {"event_time": {"column": "departed", "unit": "minutes"}},
        {"table": None},
        {"name": "Not A Name"},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(declare: Callable[..., Path], changes: dict[str, Any]) -> None:
    path = declare(**changes)
    with pytest.raises(SpecError):
        load_stream(path)
    assert not VALIDATOR.is_valid(yaml.safe_load(path.read_text()))


def test_the_guides_stream_is_valid(tmp_path: Path) -> None:
    guide = Path("docs/how-to/declare-a-stream.md").read_text()
    stream, defaults, *_ = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "orders.yaml").write_text(stream)
    (tmp_path / "_defaults.yaml").write_text(defaults)
    assert load_stream(tmp_path / "orders.yaml").partition_by == ("day(ordered_at)",)
    VALIDATOR.validate(yaml.safe_load(stream))


def test_the_page_lists_the_values_of_a_choice_with_its_default_in_bold() -> None:
    page = configuration_page.render()
    assert "| `resources.deploy-mode` | **`client`**, `cluster` |" in page
    assert "| `resources.master` | **`local[*]`**, `spark://host:port`, `yarn` or `k8s://https://host:port` |" in page
    assert "| `dead-letters.circuit` | mapping, or `off` |" in page
