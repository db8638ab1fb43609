"""Models of `source.format`, `source.key` and `source.headers`: how a record's value, key and headers are encoded."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PrivateAttr,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)

from frazil.errors import SpecError
from frazil.spec.values import Model, PositiveDuration, Properties, YamlForm, checked, parse_names


class Registry(Model):
    """A schema registry with Confluent's API."""

    url: str = Field(min_length=1)
    """The registry's address, `https://host:port`."""
    username: str | None = None
    """User name for basic authentication."""
    password: str | None = None
    """Password for basic authentication: a reference, such as `${env:REGISTRY_PASSWORD}`."""
    token: str | None = None
    """Bearer token: a reference."""
    ca_file: str | None = None
    """PEM file of the registry's certificate authority, at this path on all hosts; relative to the declaration."""
    timeout: PositiveDuration = timedelta(seconds=10)
    """Timeout of each request."""
    properties: Properties = Field(default_factory=dict)
    """Additional request headers."""

    @field_validator("ca_file")
    @classmethod
    def _resolve_ca_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        folder = (info.context or {}).get("folder")
        return value if value is None or folder is None else str(Path(folder, value).absolute())

    def find_conflicts(self) -> Iterator[str]:
        if self.token is not None and self.username is not None:
            yield "has both a username and a token; keep one"
        if (self.username is None) != (self.password is None):
            yield "has only one of username and password; declare both"


MAX_SCHEMA_CHARACTERS = 2**20
POSITION = "position"
"""Value in `Envelope.metadata` for an event's position in the source's log: a string that sorts by position."""


class Envelope(Model):
    """Records are change events in Debezium's format; for `mode: upsert`."""

    short_form = "type"
    type: Literal["debezium"] = "debezium"
    """The format of the change events."""
    metadata: Annotated[Mapping[str, str], YamlForm("mapping of columns")] = Field(default_factory=dict)
    """Columns for fields of the envelope (`source.lsn`, `source.ts_ms`, `transaction.id`, `ts_ms`, `op`) or, for
    `order-by`, for `position`, a string that increases along the source's log.
    """
    times: Literal["numbers", "iso"] = "numbers"
    """Whether `date` and `time` are numbers, Debezium's default, or text (`time.precision.mode: isostring`). Timestamps
    are numbers if their column has a unit, else text.
    """
    unavailable: str = Field(default="__debezium_unavailable_value", min_length=1)
    """The placeholder for a value that an update did not change (`unavailable.value.placeholder`)."""

    transactions: str | None = Field(default=None, min_length=1)
    """The topic of transaction ends, `<topic.prefix>.transaction`: each snapshot has complete transactions. Needs
    `order-by`, and one topic with one partition.
    """


class JsonFormat(Model):
    """One JSON object per record, or one per line."""

    type: Literal["json"] = "json"
    framing: Literal["none", "confluent"] = "none"
    """`confluent`: skip a zero byte and a four-byte schema id before the object. The default with a `registry`."""
    lines: bool = False
    """Each line of a record is an object and becomes a row, numbered by `kafka_line`."""
    unwrap: Annotated[str, Field(min_length=1), checked(parse_names)] | None = None
    r"""The field whose object has the columns: `payload` for Kafka Connect, or `outer.inner`. A dot in a name: `\.`."""
    registry: Registry | None = None
    """Only for `frazil infer`: the registry with the JSON Schema of each id."""
    envelope: Envelope | None = None
    """`debezium`, or a mapping."""

    def find_conflicts(self) -> Iterator[str]:
        if self.unwrap is not None and self.envelope is not None:
            yield "has both unwrap and envelope; envelope already finds events in `payload`, so remove unwrap"

    @model_validator(mode="before")
    @classmethod
    def _set_framing(cls, value: object) -> object:
        if isinstance(value, Mapping) and value.get("registry") is not None:
            return {"framing": "confluent", **value}
        return value


class StringFormat(Model):
    """The whole value is UTF-8 text, for a `string` column."""

    type: Literal["string"] = "string"
    column: str = ""
    """The column that the value fills; by default the column without a key or header."""


class BytesFormat(Model):
    """The whole value is stored unchanged, in a `binary` column."""

    type: Literal["bytes"] = "bytes"
    column: str = ""
    """The column that the value fills; by default the column without a key or header."""


def _check_character(value: str) -> None:
    if not re.fullmatch(r"[ -/:-@\[-`{-~\t\x01-\x08\x1c-\x1f]", value):
        raise ValueError("is not allowed; write one ASCII character that is not a letter, a digit or a line break")


def _check_distinct(value: tuple[str, ...]) -> None:
    if len(set(value)) < len(value):
        raise ValueError("names a column twice")


class CsvFormat(Model):
    """One line of fields per record, without a header line."""

    type: Literal["csv"] = "csv"
    columns: Annotated[tuple[str, ...], checked(_check_distinct)] = ()
    """The columns of a line's fields, in order; by default all columns. Fields of other names are skipped."""
    delimiter: Annotated[str, checked(_check_character)] = ","
    """The ASCII character between two fields."""
    quote: Annotated[str, checked(_check_character)] | None = '"'
    """The ASCII character around a field that contains a delimiter; doubled within the field. `null`: no quotes."""
    null: str = ""
    """An unquoted field with this text is null."""

    def find_conflicts(self) -> Iterator[str]:
        if self.delimiter == self.quote:
            yield "uses the same character as delimiter and as quote; choose different characters"


class _SchemaFormat(Model):
    """Base class of formats with a schema, which comes from a registry, a file or the declaration."""

    registry: Registry | None = None
    """The registry with the schemas of the ids in records."""
    schema_file: str | None = None
    """File with the schema of all records, which then have no schema id; relative to the declaration's folder."""
    schema_text: str | None = Field(default=None, max_length=MAX_SCHEMA_CHARACTERS)
    """The schema's text, instead of `schema-file`."""
    _folder: Path = PrivateAttr(default=Path())
    """The folder of the file that declares the format; the working directory if the format is not from a file."""

    @model_validator(mode="after")
    def _set_folder(self, info: ValidationInfo) -> Self:
        if self.schema_file is not None:
            self._folder = (info.context or {}).get("folder", Path())
        return self

    @property
    def schema_path(self) -> Path | None:
        return None if self.schema_file is None else self._folder / self.schema_file

    def find_conflicts(self) -> Iterator[str]:
        if [self.registry, self.schema_file, self.schema_text].count(None) != 2:
            yield "needs exactly one of registry, schema-file and schema-text"


class AvroFormat(_SchemaFormat):
    """A record in Avro's binary encoding."""

    type: Literal["avro"] = "avro"
    envelope: Envelope | None = None
    """`debezium`, or a mapping."""


class ProtobufFormat(_SchemaFormat):
    """A Protobuf message. A schema is a .proto file or a compiled descriptor, which is base64 in `schema-text`."""

    type: Literal["protobuf"] = "protobuf"
    message: str | None = None
    """The message's full name, if a declared schema has several."""
    framing: Literal["none", "confluent"] = "none"
    """`confluent`: with a declared schema, skips the zero byte, schema id and message indexes before each message."""

    def find_conflicts(self) -> Iterator[str]:
        yield from super().find_conflicts()
        if self.registry is not None and (self.message is not None or self.framing != "none"):
            yield "has message or framing, but with a registry each record names its message; remove them"


def envelope_of(value: ValueFormat) -> Envelope | None:
    return value.envelope if isinstance(value, JsonFormat | AvroFormat) else None


def registry_of(value: ValueFormat) -> Registry | None:
    return getattr(value, "registry", None)


ValueFormat = JsonFormat | StringFormat | BytesFormat | CsvFormat | AvroFormat | ProtobufFormat

FORMATS: Mapping[str, type[Model]] = {kind.model_fields["type"].default: kind for kind in get_args(ValueFormat)}


def _to_short_form(value: ValueFormat) -> object:
    declared = value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if isinstance(value, JsonFormat) and value.registry is not None:
        declared["framing"] = value.framing  # whose default then differs
    return {"type": value.type, **declared} if declared else value.type


Format = Annotated[
    ValueFormat,
    Field(discriminator="type"),
    BeforeValidator(lambda value: {"type": value} if isinstance(value, str) else value),
    PlainSerializer(_to_short_form, when_used="json"),
    YamlForm("`json`, `string`, `bytes`, `csv`, or a mapping with `type`"),
]
_FORMAT: TypeAdapter[ValueFormat] = TypeAdapter(Format)


def dump_format(value: ValueFormat) -> str | dict[str, Any]:
    """Return the format as in YAML: its name, or a mapping of the settings that differ from the defaults."""
    plain: str | dict[str, Any] = _FORMAT.dump_python(value, mode="json")
    return plain


def dump_portable_format(value: ValueFormat) -> str | dict[str, Any]:
    """Return the format with its schema file's text, and without a JSON registry. Raises SpecError."""
    if isinstance(value, JsonFormat):
        return dump_format(value.model_copy(update={"registry": None}))
    if isinstance(value, AvroFormat | ProtobufFormat) and value.schema_file is not None:
        return dump_format(value.model_copy(update={"schema_file": None, "schema_text": read_schema_text(value)}))
    return dump_format(value)


def read_schema_text(value: AvroFormat | ProtobufFormat) -> str:
    """Return the text of the declared schema; a compiled descriptor is in base64. Raises SpecError."""
    if value.schema_text is not None:
        return value.schema_text
    path = value.schema_path
    assert path is not None
    try:
        if isinstance(value, ProtobufFormat) and path.suffix != ".proto":
            return base64.b64encode(path.read_bytes()).decode()
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise SpecError(f"source.format.schema-file: {path} cannot be read: {error}") from None


def parse_format(plain: str | Mapping[str, Any]) -> ValueFormat:
    """Convert the result of `dump_format` back. Raises pydantic's ValidationError."""
    return _FORMAT.validate_python(plain, by_alias=True, by_name=False)


class Key(Model):
    """How a record's key is encoded, and the column that stores the whole key."""

    column: str | None = None
    """The column of the whole key: `string`, `binary` for `bytes`, or for other formats any primitive type."""
    format: Literal["string", "bytes", "value", "json", "avro", "protobuf"] = "string"
    """`string`: UTF-8 text. `bytes`: any bytes. `value`: as `source.format`, without `unwrap`, `envelope` and `lines`;
    also the default for `from: {key: …}`.
    """
    schema_file: str | None = None
    """File with the schema of all keys in `avro` or `protobuf`; see `schema-file` in `source.format`."""
    schema_text: str | None = Field(default=None, max_length=MAX_SCHEMA_CHARACTERS)
    """The schema's text, instead of `schema-file`."""
    message: str | None = None
    """The message's full name for `protobuf`, if the schema has several."""
    _folder: Path = PrivateAttr(default=Path())

    @model_validator(mode="after")
    def _check_schema_file(self, info: ValidationInfo) -> Self:
        self._folder = (info.context or {}).get("folder", Path())
        settings = [name for name in ("schema_file", "schema_text") if getattr(self, name) is not None]
        if len(settings) > 1:
            raise ValueError("has both schema-file and schema-text; remove one of them")
        if bool(settings) != (self.format in {"avro", "protobuf"}):
            if not settings:
                raise ValueError(f"has the format {self.format}, which needs schema-file; or use the format value")
            setting = settings[0].replace("_", "-")
            raise ValueError(f"has {setting} and the format {self.format}; remove {setting}")
        return self

    def fields_format(self, of_value: ValueFormat) -> ValueFormat:
        """Return the format that decodes keys: by default, the values' format `of_value`."""
        if self.format in {"avro", "protobuf"}:
            texts: dict[str, Any] = {"schema_file": self.schema_file, "schema_text": self.schema_text}
            declared = AvroFormat(**texts) if self.format == "avro" else ProtobufFormat(**texts, message=self.message)
            declared._folder = self._folder
            return declared
        if self.format == "json":
            return JsonFormat()
        changes = {"unwrap": None, "lines": False} if isinstance(of_value, JsonFormat) else {}
        return of_value.model_copy(update={**changes, **({"envelope": None} if envelope_of(of_value) else {})})


class Header(Model):
    """A column that stores a header of the record. If several headers have the name, it stores the last one."""

    name: str = Field(min_length=1)
    """The header's name in Kafka."""
    column: str
    """A column of the schema, `string` (UTF-8) or `binary`."""
