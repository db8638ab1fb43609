"""Requests to Kafka, except reading records: describe topics, list offsets, and detect truncated logs."""
