"""Converts Protobuf schemas (.proto text, or a serialised descriptor in base64) to descriptors."""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto as File
from google.protobuf.message import DecodeError

from frazil.ingest.formats.avro.schema import UnreadableSchema
from frazil.ingest.formats.protobuf.proto_text import parse_proto_text

_WELL_KNOWN = re.compile(r"google/protobuf/([a-z_]+)\.proto")
_MAIN = "declared.proto"
_CONFLUENT_DECIMAL = """
syntax = "proto3"; package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
"""
_KNOWN_TEXTS = {"confluent/type/decimal.proto": _CONFLUENT_DECIMAL, "confluent/meta.proto": 'syntax = "proto3";'}


def message_of(text: str, references: Sequence[tuple[str, str]] = (), name: str | None = None) -> Descriptor:
    """Return the message with this name, or the schema's only top-level message. Raises UnreadableSchema."""
    file = _load(text, references)
    if name is None:
        messages = list(file.message_types_by_name.values())
        if len(messages) != 1:
            raise UnreadableSchema(f"it has {len(messages)} messages: set source.format.message to one of them")
        return messages[0]
    try:
        return file.pool.FindMessageTypeByName(name)
    except KeyError:
        names = ", ".join(message.full_name for message in file.message_types_by_name.values())
        raise UnreadableSchema(f"it does not define the message {name}; it defines {names or 'no messages'}") from None


def message_at_indexes(text: str, references: Sequence[tuple[str, str]], indexes: Sequence[int]) -> Descriptor:
    """Return the message at these indexes: a top-level message, then messages nested in it. Raises UnreadableSchema."""
    file = _load(text, references)
    among: list[Descriptor] = list(file.message_types_by_name.values())
    nested: Descriptor | None = None
    for index in indexes:
        if not 0 <= index < len(among):
            raise UnreadableSchema(f"it does not define a message at the indexes {list(indexes)}")
        nested = among[index]
        among = [message for message in nested.nested_types if not message.GetOptions().map_entry]
    assert nested is not None
    return nested


def _load(text: str, references: Sequence[tuple[str, str]]) -> FileDescriptor:
    pool = descriptor_pool.DescriptorPool()
    files = {name: _parse_file(text, name) for name, text in references}
    main, *imported = _parse_files(text)
    files |= {file.name: file for file in imported}
    while main.name in files or not main.name:
        main.name = f"{main.name}{_MAIN}"
    try:
        _add_to_pool(main, files, pool, ())
        return pool.FindFileByName(main.name)
    except (TypeError, KeyError, ValueError) as error:
        raise UnreadableSchema(" ".join(str(error).split())) from None


def _add_to_pool(
    file: File, files: dict[str, File], pool: descriptor_pool.DescriptorPool, inside: tuple[str, ...]
) -> None:
    if file.name in inside:
        raise UnreadableSchema(f"{file.name} imports itself")
    for name in file.dependency:
        try:
            pool.FindFileByName(name)
            continue
        except KeyError:
            pass
        if name in files:
            imported = files[name]
        elif name in _KNOWN_TEXTS:
            imported = _parse_file(_KNOWN_TEXTS[name], name)
        elif (match := _WELL_KNOWN.fullmatch(name)) and find_spec(module := f"google.protobuf.{match[1]}_pb2"):
            imported = File.FromString(importlib.import_module(module).DESCRIPTOR.serialized_pb)
        else:
            raise UnreadableSchema(f"it imports {name}, which is missing")
        _add_to_pool(imported, files, pool, (*inside, file.name))
    pool.AddSerializedFile(file.SerializeToString())


def _parse_file(text: str, name: str) -> File:
    *_, last_file = reversed(_parse_files(text))
    last_file.name = name
    return last_file


def _parse_files(text: str) -> list[File]:
    """Return a schema's file, followed by the imported files that the text contains."""
    if re.fullmatch(r"[A-Za-z0-9+/\s]+={0,2}\s*", text):
        try:
            data = base64.b64decode(text, validate=False)
            try:
                files: Iterable[File] = descriptor_pb2.FileDescriptorSet.FromString(data).file
                described = [file for file in files if file.name.endswith(".proto") or file.message_type]
            except DecodeError:
                described = []
            return [*reversed(described)] if described else [File.FromString(data)]
        except (binascii.Error, ValueError, DecodeError) as error:
            raise UnreadableSchema(f"a descriptor cannot be read: {error}") from None
    try:
        return [parse_proto_text(text)]
    except RecursionError:
        raise UnreadableSchema("its messages are nested too deep") from None
