"""Runs writers whose driver is in a cluster: the local agent submits the driver and follows its reports."""
