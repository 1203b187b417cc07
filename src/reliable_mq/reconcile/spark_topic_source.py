"""The topics of a running cluster as the Spark data source `reliable_mq_topic`, by pulling.

Receives options; hands Spark ranges of queues, asked of the brokers once, and pulls them in Spark's
workers as Arrow batches, each worker over connections of its own. Ours and Apache's brokers alike,
and every topic that may be read: also `%DLQ%…`, `%RETRY%…` and the delay queues. Nothing is
committed, and no consumer notices. Of use by itself:

    register(spark)    # spark_session
    spark.read.format("reliable_mq_topic").option("namesrv", "127.0.0.1:9876")
        .option("topics", "%DLQ%payments").load()

Options: `namesrv` name servers, joined by `;`; `topics` with commas between them (all but those of
the system); `from` leave out what was stored before, ISO 8601 or `-24h`; `columns`, `checkBody` as
of `spark_log_source`; `messagesPerPartition` (250,000); `timeout` seconds for each answer (10).
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from reliable_mq.errors import ProtocolError, Unavailable
from reliable_mq.reconcile import topic_pulls
from reliable_mq.reconcile.log_columns import columns
from reliable_mq.reconcile.log_scan import End
from reliable_mq.reconcile.log_schema import (
    BROKER,
    LOG_SCHEMA,
    STORED_SCHEMA,
    columns_of,
    with_broker,
    without_broker,
)
from reliable_mq.reconcile.moments import parse_moment
from reliable_mq.reconcile.source_options import names, number, option, switch
from reliable_mq.reconcile.spark_cluster import (
    MESSAGES_PER_PARTITION,
    TIMEOUT_SECONDS,
    PullPartition,
    read_cluster,
)
from reliable_mq.reconcile.spark_log_source import known_columns
from reliable_mq.reconcile.topic_pulls import Came, Pulled
from reliable_mq.runtime.blocking_link import BlockingLink

TOPIC_FORMAT = "reliable_mq_topic"

_PULL_SIZE = 4 * 1024 * 1024  # brokers give less, each by its own settings
_BATCH_SIZE = 8 * 1024 * 1024
_ATTEMPTS = 3  # for each pull: a broker that is started anew is away for some seconds
_WAIT_SECONDS = 2.0


class TopicSource(DataSource):
    """The messages of a running cluster, one row each; see the head of this module."""

    @classmethod
    def name(cls) -> str:
        return TOPIC_FORMAT

    def schema(self) -> StructType:
        chosen = names(self.options, "columns", [BROKER, *LOG_SCHEMA.names])
        return from_arrow_schema(columns_of(chosen, STORED_SCHEMA))

    def reader(self, schema: StructType) -> DataSourceReader:
        since = self.options.get("from")
        since_ms = 0
        if since:
            begin = parse_moment(since, "the option 'from'", datetime.now(UTC))
            since_ms = max(0, int(begin.timestamp() * 1000))
        return TopicReader(
            option(self.options, "namesrv"),
            names(self.options, "topics", ()),
            known_columns(schema, STORED_SCHEMA),
            check_body=switch(self.options, "checkBody", "true"),
            since_ms=since_ms,
            messages_per_partition=number(
                self.options, "messagesPerPartition", MESSAGES_PER_PARTITION
            ),
            timeout=float(number(self.options, "timeout", int(TIMEOUT_SECONDS))),
        )


class TopicReader(DataSourceReader):
    """Pulls ranges of queues in Spark's workers.

    Args:
        name_servers: "host:port;host:port".
        topics: which; none: all that may hold messages of applications.
        schema: the wanted columns, of `STORED_SCHEMA`.
        check_body: whether `content_crc` is computed; else it is null.
        since_ms: leave out what was stored before, milliseconds since the epoch.
        messages_per_partition: how many messages a partition has at most.
        timeout: seconds that each answer may take.
    """

    def __init__(
        self,
        name_servers: str,
        topics: Sequence[str],
        schema: pa.Schema,
        *,
        check_body: bool = True,
        since_ms: int = 0,
        messages_per_partition: int = MESSAGES_PER_PARTITION,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self._name_servers = name_servers
        self._topics = topics
        self._schema = schema
        self._check_body = check_body
        self._since_ms = since_ms
        self._messages_per_partition = messages_per_partition
        self._timeout = timeout

    def partitions(self) -> Sequence[InputPartition]:
        ledgers = read_cluster(
            self._name_servers,
            self._topics,
            since_ms=self._since_ms,
            messages_per_partition=self._messages_per_partition,
            timeout=self._timeout,
        )
        return [InputPartition(each) for ledger in ledgers for each in ledger.partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark asks so when there is no partition at all
            return
        yield from read_pulls(
            partition.value, self._schema, check_body=self._check_body, timeout=self._timeout
        )


def read_pulls(
    partition: PullPartition, schema: pa.Schema, *, check_body: bool, timeout: float
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition as batches, each of about 8 MiB of records.

    What expired since the partition was made, or is damaged, is not there.

    Raises:
        Unavailable: when the broker does not answer, also not a few seconds later.
        RemoteError, ProtocolError: when it refuses or answers nonsense.
    """
    found: list[bytes] = []
    with BlockingLink(partition.broker.address, timeout) as link:
        at = partition.begin
        while at < partition.end:
            pulled = _pull(link, partition, at)
            if pulled.came is Came.END:
                break
            at = pulled.next_offset
            found += [pulled.body] if pulled.body else []
            if sum(map(len, found)) >= _BATCH_SIZE:
                yield _batch(b"".join(found), partition, schema, check_body)
                found.clear()
    if found:
        yield _batch(b"".join(found), partition, schema, check_body)


def _pull(link: BlockingLink, partition: PullPartition, at: int) -> Pulled:
    topic, queue_id = partition.topic, partition.queue_id
    attempts = Retrying(
        retry=retry_if_exception_type(Unavailable),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_fixed(_WAIT_SECONDS),
        reraise=True,
    )
    try:
        answer = attempts(
            lambda: link.call(
                topic_pulls.ask_messages(topic, queue_id, at, partition.end, _PULL_SIZE)
            )
        )
    except Unavailable as error:
        raise type(error)(f"broker {partition.broker.name} cannot be read: {error}") from error
    return topic_pulls.messages_in(answer, at)


def _batch(
    data: bytes, partition: PullPartition, schema: pa.Schema, check_body: bool
) -> pa.RecordBatch:
    batch, used, end = columns(
        data, None, without_broker(schema), check_body=check_body, customs=partition.customs()
    )
    if used < len(data) or end is not End.CUT:
        raise ProtocolError(
            f"broker {partition.broker.name} sent what is no record for queue"
            f" {partition.queue_id} of {partition.topic}"
        )
    return with_broker(batch, schema, partition.broker.name)
