"""Desired against observed gives an action; launchers carry it out."""

from __future__ import annotations
