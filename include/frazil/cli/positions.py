"""Parameter types for times and offsets in command-line options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import click

from frazil.commit.marker import flatten_topics
from frazil.commit.reset import Offsets
from frazil.timetext import parse_moment


class MomentText(click.ParamType[datetime]):
    """A time. It must have a time zone, so that it means the same on every machine."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            moment = parse_moment(value if isinstance(value, datetime) else str(value))
        except ValueError:
            self.fail(f"{value!r} is not an ISO 8601 time such as 2013-12-30T00:00:00Z", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{value!r} has no zone; end it with Z (UTC) or an offset such as +02:00", param, ctx)
        return moment


class OffsetsText(click.ParamType[Offsets]):
    """Offsets as JSON text, or the path of a file with such JSON: `{"topic": {"partition": offset}}`."""

    name = "json-or-file"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Offsets:
        if isinstance(value, Mapping):
            return value
        text = str(value)
        try:
            raw = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
            return flatten_topics(raw)
        except OSError as error:
            self.fail(f"{text} is not a JSON mapping and cannot be read as a file: {error.strerror}", param, ctx)
        except (ValueError, TypeError, AttributeError):
            self.fail(f'{text} is not of the form {{"topic": {{"partition": offset}}}}', param, ctx)
