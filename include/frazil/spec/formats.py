"""Models of `source.format`, `source.key` and `source.headers`: how a record's value, key and headers are encoded."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

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
from frazil.spec.paths import parse_names
from frazil.spec.values import Model, PositiveDuration, Properties, YamlForm


class Registry(Model):
    """A schema registry with Confluent's API."""

    url: str = Field(min_length=1, description="The registry's address, `https://host:port`.")
    username: str | None = Field(default=None, description="User name for basic authentication.")
    password: str | None = Field(
        default=None, description="Password for basic authentication: a reference, such as `${env:REGISTRY_PASSWORD}`."
    )
    token: str | None = Field(default=None, description="Bearer token: a reference.")
    ca_file: str | None = Field(
        default=None,
        description="A PEM file with the authority of the registry's certificate, on each host that reads records. "
        "A relative path begins at the folder of the declaration.",
    )
    timeout: PositiveDuration = Field(default=timedelta(seconds=10), description="Timeout of a request.")
    properties: Properties = Field(default_factory=dict, description="Additional headers of each request.")

    @field_validator("ca_file")
    @classmethod
    def _resolve_ca_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        folder = (info.context or {}).get("folder")
        return value if value is None or folder is None else str(Path(folder, value).absolute())

    @model_validator(mode="after")
    def _check_credentials(self) -> Self:
        if self.token is not None and self.username is not None:
            raise ValueError("has both a username and a token; keep one")
        if (self.username is None) != (self.password is None):
            raise ValueError("has a username or a password without the other")
        return self


MAX_SCHEMA_CHARACTERS = 2**20
POSITION = "position"
"""Value in `Envelope.metadata` for an event's position in the source's log, as a string. Positions of later events
sort higher.
"""


class Envelope(Model):
    """Records are change events in Debezium's format; for `mode: upsert`."""

    type: Literal["debezium"] = "debezium"
    metadata: Annotated[Mapping[str, str], YamlForm("mapping of columns")] = Field(
        default_factory=dict,
        description="Columns that the envelope fills: with a field (`source.lsn`, `source.ts_ms`, "
        "`transaction.id`, `ts_ms`, `op`), or with `position`, a text that grows along the "
        "source's log, for `order-by`.",
    )
    times: Literal["numbers", "iso"] = Field(
        default="numbers",
        description="How `date` and `time` arrive: as numbers, Debezium's default, or as text "
        "(`time.precision.mode: isostring`). Timestamps are numbers if their column has a unit, "
        "else text.",
    )
    unavailable: str = Field(
        default="__debezium_unavailable_value",
        min_length=1,
        description="The placeholder for a value that an update did not change: the row keeps its old value "
        "(`unavailable.value.placeholder`).",
    )

    transactions: str | None = Field(
        default=None,
        min_length=1,
        description="The topic with the ends of transactions, `<topic.prefix>.transaction` "
        "(`provide.transaction.metadata: true`). Each snapshot then has whole transactions. The stream "
        "must have one topic of one partition, and `order-by`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: object) -> object:
        return {"type": value} if isinstance(value, str) else value


class JsonFormat(Model):
    """One JSON object per record, or several objects, one per line."""

    type: Literal["json"] = "json"
    framing: Literal["none", "confluent"] = Field(
        default="none",
        description="`confluent`: a zero byte and a schema id of four bytes come before the object, and are "
        "skipped. The default with a `registry`.",
    )
    lines: bool = Field(
        default=False,
        description="Each line of a record is an object, and becomes a row. `kafka_line` counts the rows of a record.",
    )
    unwrap: str | None = Field(
        default=None,
        min_length=1,
        description="The field whose object has the columns, `payload` for Kafka Connect's `{schema, payload}`; "
        "`outer.inner` for a field within a field. Write `\\.` for a dot within a name.",
    )
    registry: Registry | None = Field(
        default=None,
        description="The registry where `frazil infer` finds the JSON Schema of each id. The writer does not use "
        "the registry.",
    )
    envelope: Envelope | None = Field(
        default=None, description="`debezium`, or a mapping: records are change events of another database."
    )

    @field_validator("unwrap")
    @classmethod
    def _check_unwrap(cls, value: str | None) -> str | None:
        if value is not None:
            parse_names(value)
        return value

    @model_validator(mode="after")
    def _check_unwrapped_once(self) -> Self:
        if self.unwrap is not None and self.envelope is not None:
            raise ValueError(
                "has both unwrap and envelope; envelope already finds events in `payload`, so remove unwrap"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _set_framing(cls, value: object) -> object:
        if isinstance(value, Mapping) and value.get("registry") is not None:
            return {"framing": "confluent", **value}
        return value


_ONE_COLUMN = "The column that the value fills. By default the column that neither key nor header fills."


class StringFormat(Model):
    """The whole value is one text in UTF-8. It fills the only `string` column that neither key nor headers fill."""

    type: Literal["string"] = "string"
    column: str = Field(default="", description=_ONE_COLUMN)


class BytesFormat(Model):
    """The whole value is stored as it is, in the only `binary` column that neither key nor headers fill."""

    type: Literal["bytes"] = "bytes"
    column: str = Field(default="", description=_ONE_COLUMN)


class CsvFormat(Model):
    """One line of fields per record, without a header line."""

    type: Literal["csv"] = "csv"
    columns: tuple[str, ...] = Field(
        default=(),
        description="The columns of a line's fields, in order. The field of a name that is not a column is skipped. "
        "By default the columns of the schema.",
    )
    delimiter: str = Field(default=",", description="The ASCII character between two fields.")
    quote: str | None = Field(
        default='"',
        description="The ASCII character around a field that contains a delimiter. Within such a field, write the "
        "character twice. `null`: fields are not quoted.",
    )
    null: str = Field(
        default="", description="An unquoted field with this text is null; by default, an empty field is null."
    )

    @field_validator("delimiter", "quote")
    @classmethod
    def _check_character(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[ -/:-@\[-`{-~\t\x01-\x08\x1c-\x1f]", value):
            raise ValueError("is not an ASCII character other than a letter, a digit or a line break")
        return value

    @field_validator("columns")
    @classmethod
    def _check_distinct(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("names a column twice")
        return value

    @model_validator(mode="after")
    def _check_quote(self) -> Self:
        if self.delimiter == self.quote:
            raise ValueError("has the same character as delimiter and as quote")
        return self


class _SchemaFormat(Model):
    registry: Registry | None = Field(default=None, description="The registry with the schema of each record's id.")
    schema_file: str | None = Field(
        default=None,
        description="A file with the schema of all records; the records then have no schema id. A relative path "
        "begins at the folder of the declaration.",
    )
    schema_text: str | None = Field(
        default=None,
        max_length=MAX_SCHEMA_CHARACTERS,
        description="The same as `schema-file`, but with the schema's text as the value.",
    )
    _folder: Path = PrivateAttr(default=Path())
    """The folder of the file that declares the format; the working directory if no file does."""

    @model_validator(mode="after")
    def _set_folder(self, info: ValidationInfo) -> Self:
        if self.schema_file is not None:
            self._folder = (info.context or {}).get("folder", Path())
        return self

    @property
    def schema_path(self) -> Path | None:
        """Path of the schema file."""
        return None if self.schema_file is None else self._folder / self.schema_file

    @model_validator(mode="after")
    def _check_one_schema(self) -> Self:
        given = [of for of in (self.registry, self.schema_file, self.schema_text) if of is not None]
        if len(given) != 1:
            raise ValueError("needs one of registry, schema-file and schema-text")
        return self


class AvroFormat(_SchemaFormat):
    """A record in Avro's binary encoding."""

    type: Literal["avro"] = "avro"
    envelope: Envelope | None = Field(
        default=None, description="`debezium`, or a mapping: records are change events of another database."
    )


class ProtobufFormat(_SchemaFormat):
    """A Protobuf message. A declared schema is a .proto file, or a compiled descriptor (in base64 as text)."""

    type: Literal["protobuf"] = "protobuf"
    message: str | None = Field(
        default=None,
        description="The full name of the message, if a declared schema has several messages. With a registry, each "
        "record names its message.",
    )
    framing: Literal["none", "confluent"] = Field(
        default="none",
        description="With a declared schema: `confluent` if each message still has a zero byte, a schema id and "
        "message indexes before it, which are skipped.",
    )

    @model_validator(mode="after")
    def _check_message(self) -> Self:
        if self.registry is not None and (self.message is not None or self.framing != "none"):
            raise ValueError("has message or framing, but with a registry each record names its message; remove it")
        return self


def envelope_of(value: ValueFormat) -> Envelope | None:
    """Return the envelope around records of this format; None if they have no envelope."""
    return value.envelope if isinstance(value, JsonFormat | AvroFormat) else None


def registry_of(value: ValueFormat) -> Registry | None:
    """Return the schema registry that is declared for this format; None if it has no registry."""
    return getattr(value, "registry", None)


ValueFormat = JsonFormat | StringFormat | BytesFormat | CsvFormat | AvroFormat | ProtobufFormat

FORMATS: Mapping[str, type[Model]] = {
    "json": JsonFormat,
    "string": StringFormat,
    "bytes": BytesFormat,
    "csv": CsvFormat,
    "avro": AvroFormat,
    "protobuf": ProtobufFormat,
}
"""Models of the formats, by their `type` in YAML."""


def _with_type(value: object) -> object:
    return {"type": value} if isinstance(value, str) else value


def _to_short_form(value: ValueFormat) -> object:
    declared = value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if isinstance(value, JsonFormat) and value.registry is not None:
        declared["framing"] = value.framing  # whose default then differs
    return {"type": value.type, **declared} if declared else value.type


Format = Annotated[
    ValueFormat,
    Field(discriminator="type"),
    BeforeValidator(_with_type),
    PlainSerializer(_to_short_form, when_used="json"),
    YamlForm("`json`, `string`, `bytes`, `csv`, or a mapping with `type`"),
]

_FORMAT: TypeAdapter[ValueFormat] = TypeAdapter(Format)


def plain_format(value: ValueFormat) -> str | dict[str, Any]:
    """Return the format as in YAML: its name, or a mapping of the settings that differ from the defaults."""
    plain: str | dict[str, Any] = _FORMAT.dump_python(value, mode="json")
    return plain


def carried_format(value: ValueFormat) -> str | dict[str, Any]:
    """Return the format for use on another host, in the form of `plain_format`.

    A schema file is replaced by its text. A registry that reading does not need is omitted. Raises SpecError if the
    schema file cannot be read.
    """
    if isinstance(value, JsonFormat):
        return plain_format(value.model_copy(update={"registry": None}))
    if isinstance(value, AvroFormat | ProtobufFormat) and value.schema_file is not None:
        return plain_format(value.model_copy(update={"schema_file": None, "schema_text": schema_of(value)}))
    return plain_format(value)


def schema_of(value: AvroFormat | ProtobufFormat) -> str:
    """Return the text of the declared schema, in base64 if its file is a descriptor.

    Raises SpecError if it cannot be read.
    """
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


def format_of(plain: str | Mapping[str, Any]) -> ValueFormat:
    """Convert the result of `plain_format` back to the format. Raises pydantic's ValidationError."""
    return _FORMAT.validate_python(plain, by_alias=True, by_name=False)


class Key(Model):
    """The column that stores a record's key."""

    column: str = Field(description="A column of the schema, `string` or `binary`.")
    format: Literal["string", "bytes"] = Field(
        default="string",
        description="`string`: UTF-8 text, for a `string` column; `bytes`: any bytes, for a `binary` column.",
    )


class Header(Model):
    """A column that stores a header of the record; if a record has several headers of that name, the last one."""

    name: str = Field(min_length=1, description="The header's name in Kafka.")
    column: str = Field(description="A column of the schema: `string` for a header in UTF-8, or `binary`.")
