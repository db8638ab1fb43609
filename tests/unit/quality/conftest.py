"""Gate requests for these tests."""

from __future__ import annotations

from tests.gate_requests import ask

__all__ = ["ask"]
