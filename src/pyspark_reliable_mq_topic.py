"""Lets Spark find the data source `reliable_mq_topic` by itself; see `spark_topic_source`.

Spark imports every module `pyspark_…` that it finds and registers what is called DefaultSource
there. Programs that have nothing to do with us pay for it, so this imports Spark alone.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType


class TopicSource(DataSource):
    """Stands in for `spark_topic_source.TopicSource` until it is used."""

    @classmethod
    def name(cls) -> str:
        return "reliable_mq_topic"

    def schema(self) -> StructType | str:
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)

    def _source(self) -> DataSource:
        from reliable_mq.reconcile.brokers import spark_topic_source  # noqa: PLC0415 - see the head

        return spark_topic_source.TopicSource(self.options)


DefaultSource = TopicSource
