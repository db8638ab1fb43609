"""Adds Iceberg's type `variant`, which PyIceberg 0.12 cannot parse.

In memory, a variant is its JSON text, so `VariantType` is a string for decoders and transforms. frazil encodes the text
before it writes the rows (`frazil.ingest.variants`). PyIceberg cannot scan a variant column, but can scan the others.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, Literal

import pyiceberg.types
from pydantic import Field
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, StringType


class VariantType(StringType):
    root: Literal["variant"] = Field(default="variant")  # type: ignore[assignment]

    def minimum_format_version(self) -> TableVersion:
        return 3


def _parse(cls: type[IcebergType], v: Any, handler: Any) -> IcebergType:
    """Replacement code of PyIceberg's parser, so the other names are globals of `pyiceberg.types`."""
    return VariantType() if v == "variant" and cls is not VariantType else _parse_others(cls, v, handler)  # type: ignore[name-defined] # noqa: F821


# Compiled Pydantic models refer to the function object, so only its code can be replaced.
_parser: Any = IcebergType.handle_primitive_type.__func__
_names = vars(pyiceberg.types)
_names |= {"VariantType": VariantType, "_parse_others": FunctionType(_parser.__code__, _names)}
_parser.__code__ = _parse.__code__
