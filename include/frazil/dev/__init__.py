"""Embedded servers for `frazil dev`, the demo, tests and benchmarks, such as Kafka, Airflow and Spark."""
