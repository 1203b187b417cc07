"""Sends message traces to the trace topic of the brokers, in the background.

It receives the facts that hooks see, on the loop and in threads, and sends trace messages. Sends
and handlers never wait for a broker here: traces without room are dropped and counted. Traces are
sent without hooks, so that no trace is traced.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable

import msgspec

from reliable_mq.client.observing.message_trace import (
    BODY_SIZE_MAX,
    GROUP_PREFIX,
    TRACE_TOPIC,
    TraceRecord,
    begun_records,
    ended_records,
    recall_record,
    sent_records,
    trace_message,
    transaction_record,
)
from reliable_mq.client.observing.middleware import (
    Delivery,
    Ending,
    Middleware,
    ObservedClient,
    Recall,
    Sending,
)
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.errors import ConfigurationError, RemoteError
from reliable_mq.message import new_message_id
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.outages import FaultRate

log = logging.getLogger(__name__)

SEND_SECONDS = 5.0
GROUP_LENGTH_MAX = 255


class MessageTraceMiddleware(Middleware):
    """Writes the events of messages to the trace topic, as Apache's client does.

    Then `mqadmin queryMsgTraceById` and Apache's dashboard show the sender and the time of a
    message, and what each consumer group did with it. The broker of each message decides whether
    there are traces (`traceOn`). The topic is created by `traceTopicEnable=true` or by the first
    trace.

    Invariant M2: at most `held_count_max` records of a client wait. `dropped` counts all records
    that were not sent.

    Args:
        topic: the topic of traces.
        batch_count: number of records that are sent at once; more if more are waiting.
        wait_seconds: fewer records are sent after this time.
        held_count_max: maximum records that wait for a broker; further ones are dropped.

    Raises:
        ConfigurationError: when a number is not positive.
    """

    def __init__(
        self,
        *,
        topic: str = TRACE_TOPIC,
        batch_count: int = 10,
        wait_seconds: float = 5.0,
        held_count_max: int = 2048,
    ) -> None:
        for name, value in (
            ("batch_count", batch_count),
            ("wait_seconds", wait_seconds),
            ("held_count_max", held_count_max),
        ):
            if value <= 0:
                raise ConfigurationError(f"{name} is {value}: it must be positive")
        self.topic = topic
        self.batch_count = batch_count
        self.wait_seconds = wait_seconds
        self.held_count_max = held_count_max
        self._writers: dict[str, _TraceWriter] = {}  # by client
        self._left = 0  # number that writers of closed clients have dropped

    @property
    def dropped(self) -> int:
        """Number of records that were not sent: there was no room, or no broker accepted them."""
        return self._left + sum(writer.dropped for writer in self._writers.values())

    async def after_start(self, client: ObservedClient) -> None:
        """Start sending a client's traces."""
        self._writers[client.client_id] = _TraceWriter(client, self)

    async def before_close(self, client: ObservedClient) -> None:
        """Send the waiting records."""
        writer = self._writers.get(client.client_id)
        if writer is None:
            return
        try:
            await writer.close()
        finally:
            del self._writers[client.client_id]
            self._left += writer.dropped

    def after_send(self, sending: Sending) -> None:
        """Trace stored messages."""
        self._write(sending.origin.client_id, sent_records(sending, self.topic))

    def before_consume(self, delivery: Delivery) -> None:
        """Trace messages before a handler."""
        if delivery.topic != self.topic:
            request_id = new_message_id(delivery.begun_ms, os.urandom(10))
            delivery.notes[self] = request_id
            self._write(delivery.origin.client_id, begun_records(delivery, request_id))

    def after_consume(self, delivery: Delivery) -> None:
        """Trace the end of a handler."""
        request_id = delivery.notes.pop(self, None)
        if request_id is not None:
            self._write(delivery.origin.client_id, ended_records(delivery, request_id))

    def after_end(self, ending: Ending) -> None:
        """Trace the end of a half message."""
        stored = ending.half.stored
        if ending.error is None and (stored is None or stored.trace_on):
            self._write(ending.origin.client_id, [transaction_record(ending)])

    def after_recall(self, recall: Recall) -> None:
        """Trace a recall. Apache's client does this only with a system property."""
        if recall.error is None or isinstance(recall.error, RemoteError):
            self._write(recall.origin.client_id, [recall_record(recall)])

    def _write(self, client_id: str, records: Iterable[TraceRecord]) -> None:
        writer = self._writers.get(client_id)
        if writer is not None:
            writer.keep_records(records)


class _TraceWriter:
    """The traces of one client: waiting records, and the task that sends them."""

    def __init__(self, client: ObservedClient, trace: MessageTraceMiddleware) -> None:
        self._client = client
        self._trace = trace
        group = f"{GROUP_PREFIX}-{client.settings.producer_group}-{os.urandom(4).hex()}"
        settings = msgspec.structs.replace(
            client.settings,
            producer_group=group[-GROUP_LENGTH_MAX:],
            body_bytes_max=2 * BODY_SIZE_MAX,
            batch_bytes_max=2 * BODY_SIZE_MAX,
        )
        self._producer = SendFlows(settings, client.routes, os.urandom)
        self._waiting: deque[TraceRecord] = deque()
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._enough = asyncio.Event()
        self._is_called = False
        self._is_closing = False
        self._faults = FaultRate()
        self._task = asyncio.create_task(self._run())
        #: number of records for which there was no room, or that no broker accepted
        self.dropped = 0

    def keep_records(self, records: Iterable[TraceRecord]) -> None:
        """Keep records until they are sent, if there is room. Safe from any thread."""
        with self._lock:
            for record in records:
                if len(self._waiting) < self._trace.held_count_max:
                    self._waiting.append(record)
                else:
                    self.dropped += 1
            calls = len(self._waiting) >= self._trace.batch_count and not self._is_called
            self._is_called |= calls
        if calls:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._enough.set)

    async def close(self) -> None:
        """Send the waiting records and end. If this is cancelled, the rest is dropped."""
        self._is_closing = True
        self._enough.set()
        try:
            await asyncio.shield(self._task)
        finally:
            self._task.cancel()
            await asyncio.wait([self._task])  # it counts the records that it was sending
            with self._lock:
                self.dropped += len(self._waiting)
                self._waiting.clear()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._trace.wait_seconds):
                    await self._enough.wait()
            self._enough.clear()
            with self._lock:
                self._is_called = False
            while self._waiting:
                await self._send_some()
            if self._is_closing:
                return

    async def _send_some(self) -> None:
        with self._lock:
            message, count = trace_message(self._trace.topic, self._waiting)
        try:
            await self._client.run(self._producer.send(message, timeout=SEND_SECONDS))
        except BaseException as error:
            with self._lock:
                self.dropped += count
            if not isinstance(error, Exception):  # cancelled
                raise
            if self._faults.count_fault("send", time.monotonic()) is not None:
                lost = self._trace.dropped
                client_events.TRACE_LOST.log(log, lost=lost, error=error)
