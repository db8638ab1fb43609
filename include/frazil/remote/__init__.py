"""Runs writers whose driver is in a cluster. A local agent submits the driver and follows its reports."""
