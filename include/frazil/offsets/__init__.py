"""Calculations on the Kafka offsets of topic-partitions, as spans and as counts. No I/O."""
