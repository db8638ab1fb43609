"""A stream's history: numbers by the minute and what happened, kept beside its table, bounded, for people to look at.

Nothing is decided by it. A write that is lost, or two that cross, cost a minute of a curve.
"""
