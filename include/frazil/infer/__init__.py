"""Proposes a stream's declaration from a sample of its topic; a person edits it."""
