"""Proposes a stream's declaration from a sample of its topic, for a user to edit."""
