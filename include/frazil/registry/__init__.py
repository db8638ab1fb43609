"""Fetches schemas by id from a schema registry with Confluent's API."""
