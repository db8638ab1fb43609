"""A stream's history: numbers by the minute, and events, kept next to its table, bounded, for people.

Nothing depends on it. A lost write, or two concurrent ones, cost a minute of a curve.
"""
