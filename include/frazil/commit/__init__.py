"""The only package that writes to the streams' tables. It has journals, markers, take-overs and commits."""

from __future__ import annotations
