"""The consumers of one application in one process, on the running loop."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.observing.middleware import Middleware
from reliable_mq.client.sending.asyncio_sending import engine_of
from reliable_mq.confirm.sql_telling import NoticeInbox
from reliable_mq.consume.asyncio_delivery import HandlerGate, MessageProcessing
from reliable_mq.consume.consumer import Consumer
from reliable_mq.consume.observed_handlers import hooks_of_handlers
from reliable_mq.consume.signing import SignatureCheck, signer_by
from reliable_mq.consume.sql_consume_transaction import ConsumeTransaction
from reliable_mq.consume.thread_loop_watch import LoopWatch
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.lease_store import LeasesBehindBreaker, LeaseStore
from reliable_mq.runtime.daemon_threads import DaemonThreads
from reliable_mq.settings import Settings


class Worker:
    """Runs consumers, each in its database.

    Args:
        consumers: the consumers to run.
        databases: the databases by name, as the consumers name them.
        notices: the senders of notices, by the same names.
        client: reads from the broker.
        settings: the application's settings.
        open_leases: opens the store of leases on this loop; returns None if there is none.
        middleware: called around the calls of handlers.
        gate: the gate for all handlers of this process.
    """

    def __init__(
        self,
        consumers: Sequence[Consumer],
        databases: Mapping[str, Database],
        notices: Mapping[str, NoticeInbox],
        client: AsyncClient,
        settings: Settings,
        open_leases: Callable[[], LeaseStore | None],
        middleware: Sequence[Middleware],
        gate: HandlerGate,
    ) -> None:
        self._consumers = consumers
        self._databases = databases
        self._notices = notices
        self._client = client
        self._settings = settings
        self._open_leases = open_leases
        self._gate = gate
        self._hooks = hooks_of_handlers(middleware, engine_of(client).hooks.origin)
        self._leases: LeaseStore | None = None
        self._deliveries: list[MessageProcessing] = []
        self._running: list[AsyncPushConsumer] = []
        threads = sum(each.concurrency for each in consumers)
        self._threads = DaemonThreads(max(1, threads), "reliable-mq-handler")
        codes = {getattr(each.plan.function, "__code__", None) for each in consumers}
        self._watch = LoopWatch(self._may_block, codes)

    async def start(self) -> None:
        """Subscribe all consumers.

        Raises:
            ConfigurationError: `open_leases` did not return a store of leases.
        """
        settings = self._settings
        leases = self._open_leases()
        if leases is not None and not isinstance(leases, LeaseStore):
            raise ConfigurationError(f"leases= opened {leases!r}, which is not a LeaseStore")
        self._leases = leases
        if any(each.plan.is_async for each in self._consumers):
            self._watch.start()
        signer = signer_by(settings)
        for consumer in self._consumers:
            database = self._databases[consumer.database]
            attempts = ConsumeTransaction(
                consumer,
                database,
                retry_waits=consumer.retry_waits or settings.retry_waits_seconds,
                notices=self._notices[consumer.database],
                hooks=self._hooks,
            )
            seal = None if signer is None else SignatureCheck(signer, consumer.group)
            deliveries = MessageProcessing(attempts, self._leases, self._threads, self._gate, seal)
            deliveries.start()
            self._deliveries.append(deliveries)
            self._running.append(
                await self._client.consume(consumer.subscription(), deliveries.handle)
            )

    def handler_calls(self) -> list[tuple[str, int, int]]:
        """Return (group, running calls, most calls) of each consumer. Safe in any thread."""
        return [
            (each.group, len(running.pool.calls), each.concurrency)
            for each, running in zip(self._consumers, tuple(self._running), strict=False)
        ]

    def _may_block(self) -> list[str]:
        """Return the handlers that run on the loop now. Safe in any thread."""
        return [
            f"{each.plan.function.__qualname__} (group {each.group})"
            for each, (_, calls, _) in zip(self._consumers, self.handler_calls(), strict=False)
            if each.plan.is_async and calls
        ]

    def when_accepted(self, call: Callable[[], None]) -> None:
        """Call once when the brokers have accepted all consumers: now, or on the client's loop."""
        left = set(range(len(self._running)))

        def accepted(number: int) -> None:
            left.discard(number)
            if not left:
                call()

        for number, running in enumerate(tuple(self._running)):
            running.when_accepted(partial(accepted, number))

    @property
    def is_breaker_open(self) -> bool:
        """Whether Redis counts as unreachable now."""
        return isinstance(self._leases, LeasesBehindBreaker) and not self._leases.is_reachable

    async def abandon(self) -> None:
        """Stop what would keep the process alive, without informing anybody; for tests."""
        self._watch.close()
        for deliveries in self._deliveries:
            await deliveries.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """Start no more handlers, wait for running ones, return messages that were not begun."""
        await asyncio.gather(*(running.close() for running in self._running))
        for deliveries in self._deliveries:
            await deliveries.close()
        if self._leases is not None:
            await self._leases.close()
        for name in {consumer.database for consumer in self._consumers}:
            with contextlib.suppress(Exception):
                await self._databases[name].close_async()
        self._watch.close()
        self._threads.shutdown(wait=False)
