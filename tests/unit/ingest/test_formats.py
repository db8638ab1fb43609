"""The formats that a declaration may name are those that there is a decoder for."""

from __future__ import annotations

from typing import get_args, get_type_hints

from frazil.ingest.contract import StageContext
from frazil.ingest.formats import FORMATS
from frazil.spec.model import Source


def test_every_format_that_may_be_declared_has_a_decoder() -> None:
    declared = get_args(Source.model_fields["format"].annotation)
    assert set(declared) == set(FORMATS)
    assert get_args(get_type_hints(StageContext)["format"]) == declared
