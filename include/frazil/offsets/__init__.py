"""Offsets of topic-partitions, as spans and as tallies: pure, and needed everywhere."""

from __future__ import annotations
