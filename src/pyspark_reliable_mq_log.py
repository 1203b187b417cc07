"""Lets Spark find the data source `reliable_mq_log` by itself; see `spark_log_source`.

Spark imports every module `pyspark_…` that it finds and registers what is called DefaultSource
there. Programs that have nothing to do with us pay for it, so this imports Spark alone.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType


class LogSource(DataSource):
    """Stands in for `spark_log_source.LogSource` until it is used."""

    @classmethod
    def name(cls) -> str:
        return "reliable_mq_log"

    def schema(self) -> StructType | str:
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        return self._source().streamReader(schema)

    def _source(self) -> DataSource:
        from reliable_mq.reconcile.brokers import spark_log_source  # noqa: PLC0415 - see the head

        return spark_log_source.LogSource(self.options)


DefaultSource = LogSource
