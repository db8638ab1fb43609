"""Compares the desired state of a stream with the observed one, and starts or stops its writer."""

from __future__ import annotations
