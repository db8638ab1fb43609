"""Operator commands on dead letters: inspect, replay, discard."""
