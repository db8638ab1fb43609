"""Compares the desired state of a stream with its observed state, and starts or stops the stream's writer."""
