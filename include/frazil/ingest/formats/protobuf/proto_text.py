"""Parses the text of a .proto file (proto2, proto3 and editions) into a descriptor. The descriptor pool then resolves
its names. Skips everything that does not affect decoding, such as services and extensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2

from frazil.ingest.formats.avro.schema import UnreadableSchema

_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/ | (?P<token>
    "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | \.?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)* |
    [0-9.][0-9A-Za-z_.]*(?:[eE][+-][0-9]+)? | [{}\[\]()<>=;,:+\-/] )""",
    re.VERBOSE | re.DOTALL,
)
_Field = descriptor_pb2.FieldDescriptorProto
_LABELS = {"optional": _Field.LABEL_OPTIONAL, "required": _Field.LABEL_REQUIRED, "repeated": _Field.LABEL_REPEATED}
_SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in _Field.Type.items()
    if number not in (_Field.TYPE_GROUP, _Field.TYPE_MESSAGE, _Field.TYPE_ENUM)
}
_CLOSING = {"{": "}", "[": "]", "(": ")", "<": ">"}
_FEATURES = frozenset({"field_presence", "enum_type", "repeated_field_encoding", "utf8_validation", "message_encoding"})


def parse_proto_text(text: str) -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of a .proto file, without a file name. Raises UnreadableSchema."""
    return _Parser(text).file()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, int]] = []
        self._at = 0
        position = 0
        text = text.removeprefix("\ufeff")
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise UnreadableSchema(
                    f"line {text.count(chr(10), 0, position) + 1}: {text[position : position + 10]!r} is not a token"
                )
            if match["token"]:
                self._tokens.append((match["token"], position))
            position = match.end()
        self._text = text

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        target = descriptor_pb2.FileDescriptorProto()
        self._proto3 = False
        while self._at < len(self._tokens):
            match self._take_name():
                case ";":
                    pass
                case "syntax" | "edition":
                    self._expect("=")
                    self._syntax(_unquote(self._take_name()), target)
                    self._expect(";")
                case "package":
                    target.package = self._take_name()
                    self._expect(";")
                case "import":
                    name = self._take_name()
                    while name in ("public", "weak", "option"):
                        if name == "public":
                            target.public_dependency.append(len(target.dependency))
                        name = self._take_name()
                    target.dependency.append(_unquote(name))
                    self._expect(";")
                case "option":
                    self._option(target.options)
                    self._expect(";")
                case "message":
                    self._message(target.message_type.add(), 0)
                case "enum":
                    self._enum(target.enum_type.add())
                case "service" | "extend":
                    self._skip_statement()
                case other:
                    raise self._error(f"{other!r} is not allowed here")
        return target

    def _syntax(self, name: str, target: descriptor_pb2.FileDescriptorProto) -> None:
        if name in ("proto2", "proto3"):
            target.syntax = name
            self._proto3 = name == "proto3"
        elif f"EDITION_{name}" in descriptor_pb2.Edition.keys():  # noqa: SIM118 - it is not a mapping
            target.syntax, target.edition = "editions", descriptor_pb2.Edition.Value(f"EDITION_{name}")
        else:
            raise self._error(f"{name!r} is not a known syntax or edition")

    def _message(self, target: descriptor_pb2.DescriptorProto, depth: int, name: str | None = None) -> None:
        if depth > 60:
            raise self._error("messages are nested too deep")
        target.name = name or self._take_name()
        for word in self._statements(target.options):
            has_braces = self._peek(1) == "{"
            if word == "message" and has_braces:
                self._message(target.nested_type.add(), depth + 1)
            elif word == "enum" and has_braces:
                self._enum(target.enum_type.add())
            elif word == "oneof" and has_braces:
                target.oneof_decl.add(name=self._take_name())
                for field in self._statements(descriptor_pb2.OneofOptions()):
                    self._parse_field(field, target, depth, len(target.oneof_decl) - 1)
            elif (word in ("reserved", "extensions") and self._peek(1) != "=") or (word == "extend" and has_braces):
                self._skip_statement()
            else:
                self._parse_field(word, target, depth)
        self._add_optional_oneofs(target)

    def _statements(self, options: Any) -> Iterator[str]:
        """Yield the first word of each statement in braces, except of options, which are parsed."""
        self._expect("{")
        while (word := self._take_name()) != "}":
            if word == "option":
                self._option(options)
                self._expect(";")
            elif word != ";":
                yield word

    def _parse_field(
        self, word: str, target: descriptor_pb2.DescriptorProto, depth: int, oneof: int | None = None
    ) -> None:
        label = _LABELS.get(word) if oneof is None and self._peek() != "=" else None
        kind = word if label is None else self._take_name()
        field = target.field.add(label=label or _Field.LABEL_OPTIONAL)
        if oneof is not None:
            field.oneof_index = oneof
        field.proto3_optional = self._proto3 and word == "optional" and label is not None
        if not field.proto3_optional:
            field.ClearField("proto3_optional")
        if kind == "map" and self._peek() == "<":
            self._parse_map(field, target)
            return
        self._parse_name_and_number(field)
        if kind == "group":
            group = field.name
            field.type, field.type_name, field.name = _Field.TYPE_GROUP, group, group.lower()
            self._message(target.nested_type.add(), depth + 1, group)
            return
        self._set_type(field, kind)
        self._expect(";")

    def _parse_name_and_number(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        field.name = self._take_name()
        self._expect("=")
        field.number = self._parse_number()
        if self._peek() == "[":
            self._field_options(field)

    def _parse_map(self, field: descriptor_pb2.FieldDescriptorProto, target: descriptor_pb2.DescriptorProto) -> None:
        self._expect("<")
        key = self._take_name()
        self._expect(",")
        value = self._take_name()
        self._expect(">")
        self._parse_name_and_number(field)
        self._expect(";")
        entry = target.nested_type.add(
            name="".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        )
        entry.options.map_entry = True
        for number, name, kind in ((1, "key", key), (2, "value", value)):
            part = entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
            self._set_type(part, kind)
        field.label, field.type, field.type_name = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE, entry.name

    def _set_type(self, field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        elif re.fullmatch(r"\.?[A-Za-z_][\w.]*", kind):
            field.type_name = kind  # the pool decides whether it is a message or an enum
        else:
            raise self._error(f"{kind!r} is not a type")

    @staticmethod
    def _add_optional_oneofs(target: descriptor_pb2.DescriptorProto) -> None:
        for field in target.field:
            if field.proto3_optional:
                field.oneof_index = len(target.oneof_decl)
                target.oneof_decl.add(name=f"_{field.name}")

    def _enum(self, target: descriptor_pb2.EnumDescriptorProto) -> None:
        target.name = self._take_name()
        for word in self._statements(target.options):
            if word == "reserved" and self._peek() != "=":
                self._skip_statement()
                continue
            self._expect("=")
            target.value.add(name=word, number=self._parse_number())
            if self._peek() == "[":
                self._skip_brackets()
            self._expect(";")

    def _option(self, options: Any) -> None:
        """Parse an option. Stores only options that affect decoding."""
        begin = self._at
        name = self._take_name()
        while self._peek() != "=":
            if self._peek() == "(":
                self._skip_brackets()
            else:
                name += self._take_name()
        self._expect("=")
        value = self._take_name()
        if value in ("+", "-"):
            self._take_name()
        elif value in _CLOSING:
            self._at -= 1
            self._skip_brackets()
        while self._peek()[:1] in ("'", '"'):
            self._take_name()
        prefix, _, feature = name.rpartition(".")
        if self._tokens[begin][0] != "(" and prefix == "features" and feature in _FEATURES:
            kind = options.features.DESCRIPTOR.fields_by_name[feature].enum_type.values_by_name
            if value not in kind:
                raise self._error(f"{value!r} is not a value of {name}")
            setattr(options.features, feature, kind[value].number)
        elif name in ("allow_alias", "message_set_wire_format"):
            setattr(options, name, value == "true")

    def _field_options(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        self._expect("[")
        while True:
            if self._peek() in ("default", "json_name"):
                self._option(descriptor_pb2.FieldOptions())
            else:
                self._option(field.options)
            if self._expect(",", "]") == "]":
                break

    def _skip_statement(self) -> None:
        while self._peek() not in (";", "{"):
            self._take_name()
        if self._peek() == ";":
            self._take_name()
        else:
            self._skip_brackets()

    def _skip_brackets(self) -> None:
        closing = []
        while True:
            word = self._take_name()
            if word in _CLOSING:
                closing.append(_CLOSING[word])
            elif word in _CLOSING.values() and word != closing.pop():
                raise self._error(f"{word!r} closes another bracket")
            if not closing:
                return

    def _parse_number(self) -> int:
        word = self._take_name()
        sign = -1 if word == "-" else 1
        if word == "-":
            word = self._take_name()
        try:
            value = int(word, 8) if re.fullmatch(r"0[0-7]+", word) else int(word, 0)
        except ValueError:
            raise self._error(f"{word!r} is not a number") from None
        if value >= 2**31 + (sign < 0):
            raise self._error(f"{word!r} is too large")
        return sign * value

    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[self._at + ahead][0] if self._at + ahead < len(self._tokens) else ""

    def _take_name(self) -> str:
        if self._at == len(self._tokens):
            raise UnreadableSchema("the text ends within a declaration")
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _expect(self, *words: str) -> str:
        word = self._take_name()
        if word not in words:
            raise self._error(f"{' or '.join(words)} was expected, but found {word!r}")
        return word

    def _error(self, problem: str) -> UnreadableSchema:
        position = self._tokens[max(0, self._at - 1)][1] if self._tokens else 0
        return UnreadableSchema(f"line {self._text.count(chr(10), 0, position) + 1}: {problem}")


def _unquote(word: str) -> str:
    if word[:1] not in ("'", '"'):
        raise UnreadableSchema(f"{word!r} is not a string in quotation marks")
    return word[1:-1]
