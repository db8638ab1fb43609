"""Runs on executors: reads offset ranges from Kafka into Arrow tables, and writes the tables as Parquet files."""
