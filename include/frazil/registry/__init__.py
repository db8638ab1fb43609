"""Fetches schemas from a schema registry with Confluent's API."""
