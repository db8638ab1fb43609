"""Schemas by their ids, from a schema registry with Confluent's API."""
