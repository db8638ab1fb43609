"""Compares the desired state of a stream with its observed state, and starts or stops its writer."""

from __future__ import annotations
