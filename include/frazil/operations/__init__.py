"""Builds the content of the operations page: pure functions that return frozen values."""
