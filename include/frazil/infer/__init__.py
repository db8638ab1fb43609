"""Proposes a stream's declaration from a sample of its topic. A user then edits the declaration."""
