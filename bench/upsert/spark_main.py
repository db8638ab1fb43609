"""The program for `spark-submit`: merges a topic's changes by `MERGE INTO` in `foreachBatch`, as users write it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql.functions import col, from_json, row_number

MERGE = """
MERGE INTO {table} t USING changes s ON t.day = s.day AND t.id = s.id
WHEN MATCHED AND s.updated_at >= t.updated_at AND s.op = 'd' THEN DELETE
WHEN MATCHED AND s.updated_at > t.updated_at THEN UPDATE SET *
WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT *
"""


def main(arguments: Sequence[str]) -> None:
    bootstrap, topic, schema, table, checkpoint, per_batch = arguments
    spark = SparkSession.builder.getOrCreate()
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    changes = source.select(from_json(col("value").cast("string"), schema).alias("r"), "offset").select("r.*", "offset")
    newest = Window.partitionBy("day", "id").orderBy(col("updated_at").desc(), col("offset").desc())

    def merge(batch: DataFrame, _: int) -> None:
        latest = batch.withColumn("n", row_number().over(newest)).where("n = 1").drop("n", "offset")
        latest.createOrReplaceTempView("changes")
        latest.sparkSession.sql(MERGE.format(table=table))

    writer = changes.writeStream.trigger(availableNow=True).option("checkpointLocation", checkpoint)
    writer.foreachBatch(merge).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
