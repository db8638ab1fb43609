"""Runs declared daily aggregations in Spark: for each complete day, and again if late rows reopen the day."""
