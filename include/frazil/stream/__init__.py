"""Runs a stream's writer on the Spark driver: its planner, its batches and its heartbeat."""

from __future__ import annotations
