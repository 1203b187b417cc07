"""The Spark data source `reliable_mq_topic`: the topics of a running cluster, read by pulls.

Receives options. Returns ranges of queues to Spark, which it asks the brokers for once. Spark's
workers pull them as Arrow batches, each over its own connections. It works with our broker and
Apache's, and with every readable topic, also `%DLQ%…`, `%RETRY%…` and the delay queues. It commits
no offsets and does not affect consumers. You can also use it directly:

    register(spark)    # spark_session
    spark.read.format("reliable_mq_topic").option("namesrv", "127.0.0.1:9876")
        .option("topics", "%DLQ%payments").load()

Options:

- `namesrv`: name servers, joined by `;`.
- `part`: `records` (default), or the committed `offsets` of consumer groups.
- `topics`: separated by commas. Default: all except system topics.
- `from`: leave out messages that were stored before, ISO 8601 or `-24h`.
- `columns`, `checkBody`, `pushFilters`: as in `spark_log_source`.
- `messagesPerPartition`: default 250,000.
- `timeout`: seconds to wait for each reply. Default 10.

The account and the certificates come from the environment, such as `RELIABLE_MQ_ACCESS_KEY`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from reliable_mq.errors import ProtocolError, Unavailable
from reliable_mq.reconcile.brokers import topic_pulls
from reliable_mq.reconcile.brokers.log_columns import columns
from reliable_mq.reconcile.brokers.log_scan import ScanEnd
from reliable_mq.reconcile.brokers.log_schema import (
    BROKER,
    LOG_SCHEMA,
    STORED_SCHEMA,
    columns_of,
    with_broker,
    without_broker,
)
from reliable_mq.reconcile.brokers.offset_rows import OFFSET_SCHEMA, offset_batch
from reliable_mq.reconcile.brokers.queue_ranges import QueueRanges
from reliable_mq.reconcile.brokers.spark_cluster import (
    MESSAGES_PER_PARTITION,
    TIMEOUT_SECONDS,
    PullPartition,
    cut_to_ranges,
    read_cluster,
)
from reliable_mq.reconcile.brokers.spark_log_source import OFFSETS, RECORDS, known_columns, pushing
from reliable_mq.reconcile.brokers.topic_pulls import Pulled, PullStatus
from reliable_mq.reconcile.moments import parse_moment
from reliable_mq.reconcile.source_filters import AMONG, EQUAL, Condition, filtered
from reliable_mq.reconcile.source_options import (
    PUSH_FILTERS,
    check_known,
    names,
    number,
    one_of,
    option,
    switch,
)
from reliable_mq.runtime.blocking_link import BlockingLink

TOPIC_FORMAT = "reliable_mq_topic"
PARTS = {
    RECORDS: (STORED_SCHEMA, [BROKER, *LOG_SCHEMA.names]),
    OFFSETS: (OFFSET_SCHEMA, OFFSET_SCHEMA.names),
}
OPTIONS = (
    *("namesrv", "part", "topics", "from", "columns", "checkBody", PUSH_FILTERS),
    *("messagesPerPartition", "timeout"),
)

_PULL_SIZE = 4 * 1024 * 1024  # a broker may return less, by its settings
_BATCH_SIZE = 8 * 1024 * 1024
_ATTEMPTS = 3  # for each pull: a broker that restarts is down for some seconds
_WAIT_SECONDS = 2.0


class TopicSource(DataSource):
    """The messages of a running cluster, one row for each; see the head of this module."""

    @classmethod
    def name(cls) -> str:
        return TOPIC_FORMAT

    def schema(self) -> StructType:
        known, usual = PARTS[self._part()]
        return from_arrow_schema(columns_of(names(self.options, "columns", usual), known))

    def _part(self) -> str:
        check_known(self.options, TOPIC_FORMAT, OPTIONS)
        return one_of(self.options, "part", tuple(PARTS))

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._part() == OFFSETS:
            return self._pushing(
                ClusterOffsetReader(
                    option(self.options, "namesrv"),
                    known_columns(schema, OFFSET_SCHEMA),
                    float(number(self.options, "timeout", int(TIMEOUT_SECONDS))),
                ),
                OFFSET_SCHEMA,
            )
        since = self.options.get("from")
        since_ms = 0
        if since:
            begin = parse_moment(since, "the option 'from'", datetime.now(UTC))
            since_ms = max(0, int(begin.timestamp() * 1000))
        chosen = known_columns(schema, STORED_SCHEMA)
        reader = TopicReader(
            option(self.options, "namesrv"),
            names(self.options, "topics", ()),
            chosen,
            check_body=switch(self.options, "checkBody", "true"),
            since_ms=since_ms,
            messages_per_partition=number(
                self.options, "messagesPerPartition", MESSAGES_PER_PARTITION
            ),
            timeout=float(number(self.options, "timeout", int(TIMEOUT_SECONDS))),
        )
        return self._pushing(reader, chosen)

    def _pushing(self, reader: Any, schema: pa.Schema) -> DataSourceReader:
        return pushing(self.options, reader, schema)


class TopicReader(DataSourceReader):
    """Pulls ranges of queues in Spark's workers.

    Args:
        name_servers: "host:port;host:port".
        topics: the topics to read. Empty: all that may have messages of applications.
        schema: the wanted columns, from `STORED_SCHEMA`.
        check_body: whether `content_crc` is computed. Otherwise it is null. Default True.
        since_ms: leave out messages that were stored before, milliseconds since the epoch.
        messages_per_partition: most messages of a partition. Default 250,000.
        timeout: seconds to wait for each reply. Default 10.
        brokers: the names of the brokers to read. None: all.
        ranges: broker -> the ranges of its queues to read. None: all.
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
        brokers: Collection[str] | None = None,
        ranges: Mapping[str, QueueRanges] | None = None,
    ) -> None:
        self._brokers, self._ranges = brokers, ranges
        self._name_servers = name_servers
        self._topics = topics
        self._schema = schema
        self._check_body = check_body
        self._since_ms = since_ms
        self._messages_per_partition = messages_per_partition
        self._timeout = timeout
        self.conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        ledgers = read_cluster(
            self._name_servers,
            self._topics,
            since_ms=self._since_ms,
            messages_per_partition=self._messages_per_partition,
            timeout=self._timeout,
            brokers=self._brokers,
        )
        found = [each for ledger in ledgers for each in ledger.partitions]
        if self._ranges is not None:
            found = list(cut_to_ranges(found, self._ranges))
        return [InputPartition(each) for each in found if can_hold(each, self.conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark does this if there is no partition
            return
        batches = read_pulls(
            partition.value, self._schema, check_body=self._check_body, timeout=self._timeout
        )
        for batch in batches:
            yield filtered(batch, self.conditions)


class ClusterOffsetReader(DataSourceReader):
    """Reads the committed offsets of every broker, one row for each group and queue.

    Args:
        name_servers: "host:port;host:port".
        schema: the wanted columns, from `OFFSET_SCHEMA`.
        timeout: seconds to wait for each reply.
    """

    def __init__(self, name_servers: str, schema: pa.Schema, timeout: float) -> None:
        self._name_servers, self._schema, self._timeout = name_servers, schema, timeout
        self.conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._name_servers)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for ledger in read_cluster(partition.value, timeout=self._timeout):
            batch = offset_batch(ledger.broker.name, ledger.progress, ledger.queues)
            yield filtered(batch.select(self._schema.names), self.conditions)


_PARTITION_COLUMNS: Mapping[str, Callable[[PullPartition], object]] = {
    BROKER: lambda each: each.broker.name,
    "queue_topic": lambda each: each.topic,
    "queue_id": lambda each: each.queue_id,
}


def can_hold(partition: PullPartition, conditions: Iterable[Condition]) -> bool:
    """Return whether, by its broker, topic and id, a queue may have messages for all conditions."""
    return all(
        value_of(partition) in (each.value if each.operator == AMONG else (each.value,))
        for each in conditions
        if (value_of := _PARTITION_COLUMNS.get(each.column)) and each.operator in (AMONG, EQUAL)
    )


def read_pulls(
    partition: PullPartition, schema: pa.Schema, *, check_body: bool, timeout: float
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a partition as batches, each of about 8 MiB of records.

    Messages that have expired since the partition was made, or are damaged, are left out.

    Raises:
        ProtocolError: when a reply is invalid, or the queue is shorter than the broker said.
        Unavailable: when the broker does not answer, even after retries.
        RemoteError: when the broker refuses.
    """
    found: list[bytes] = []
    with partition.access.link(partition.broker.address, timeout) as link:
        at = partition.begin
        while at < partition.end:
            pulled = _pull(link, partition, at)
            if pulled.came is PullStatus.END:
                raise ProtocolError(
                    f"broker {partition.broker.name} said that queue {partition.queue_id} of"
                    f" {partition.topic} ends at offset {partition.end}, but returns nothing"
                    f" from {at} on"
                )
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
        data,
        None,
        without_broker(schema),
        check_body=check_body,
        context=partition.record_context(),
    )
    if used < len(data) or end is not ScanEnd.CUT:
        raise ProtocolError(
            f"broker {partition.broker.name} sent an invalid record for queue"
            f" {partition.queue_id} of {partition.topic}"
        )
    return with_broker(batch, schema, partition.broker.name)
