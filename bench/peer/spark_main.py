"""The program for `spark-submit`: writes a topic's JSON into a table once, with Spark's own sink or `foreachBatch`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json


def main(arguments: Sequence[str]) -> None:
    sink, bootstrap, topic, schema, table, checkpoint, sql = arguments
    spark = SparkSession.builder.getOrCreate()
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = source.select(from_json(col("value").cast("string"), schema).alias("r")).select("r.*")
    if sql:
        rows.createOrReplaceTempView("records")
        rows = spark.sql(sql)
    writer = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", checkpoint)
    if sink == "sink":
        query = writer.format("iceberg").outputMode("append").option("fanout-enabled", "true").toTable(table)
    else:

        def append(batch: DataFrame, _: int) -> None:
            batch.writeTo(table).append()

        query = writer.foreachBatch(append).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
