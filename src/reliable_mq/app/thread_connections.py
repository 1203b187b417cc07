"""What an application is connected to: a loop in a thread, client, broker, relay, workers.

Made when first needed, by whichever thread needs it; closed once.
"""

import asyncio
import atexit
import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reliable_mq.app.asyncio_delivery import Deliveries
from reliable_mq.app.consumer import Consumer
from reliable_mq.app.sql_attempts import Attempts
from reliable_mq.app.sql_database import Database
from reliable_mq.app.thread_forks import call_in_child, leave_to_parent
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.asyncio_consumer import AsyncPushConsumer
from reliable_mq.client.name_servers import parse_addresses
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError
from reliable_mq.idempotency.redis_leases import RedisLeases
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.stub import Stub
from reliable_mq.outbox.thread_relay import RelayThread
from reliable_mq.resend.policy import ResendPolicy
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.settings import Settings
from reliable_mq.sql_clock import DatabaseClock

log = logging.getLogger(__name__)

EMBEDDED = "embedded:"


class Connections:
    """The connections of one application in one process.

    Invariant: a part is made at most once, and only before `close`. A forked child has none of its
    parent's parts, and another `owner`.

    Raises:
        ConfigurationError: when the name servers' addresses do not read.
    """

    def __init__(self, name: str, settings: Settings, policy: ResendPolicy) -> None:
        self._name = name
        self._settings = settings
        self._policy = policy
        if not self.is_embedded:
            parse_addresses(settings.broker)
        self._begin()
        call_in_child(self._forget_parent)

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self._client: AsyncClient | None = None
        self._broker: object | None = None
        self._relay: RelayThread | None = None
        self._worker: Worker | None = None
        self._scheduler: tuple[threading.Thread, threading.Event] | None = None
        self._scheduler_numbers = itertools.count(1)
        self.owner = f"{self._name[:24]}-{os.getpid()}-{os.urandom(4).hex()}"

    def _forget_parent(self) -> None:
        if self._relay is not None:
            atexit.unregister(self._relay.close)
        leave_to_parent(self._thread, self._client, self._broker, self._relay, self._worker)
        self._begin()

    def scheduler_owner(self) -> str:
        """Return a name for one more resend scheduler of this process; no two are the same."""
        return f"{self.owner}-r{next(self._scheduler_numbers)}"

    @property
    def loop_thread(self) -> LoopThread:
        """The loop on which everything asynchronous of ours runs."""
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread(f"reliable-mq-{self._name}")
            return self._thread

    @property
    def is_alive(self) -> bool:
        """Whether the loop serves, or there is none."""
        return self._thread is None or self._thread.is_alive

    @property
    def client(self) -> AsyncClient:
        """The client, started; with `embedded:DIR` the broker is started first."""
        with self._lock:
            if self._client is None:
                settings = ClientSettings(producer_group=f"{self._name}_relay")
                client = AsyncClient(self._name_servers(), settings=settings)
                self.loop_thread.run(client.start())
                self._client = client
            return self._client

    def _name_servers(self) -> str:
        broker = self._settings.broker
        if not self.is_embedded:
            return broker
        directory = broker.removeprefix(EMBEDDED)
        if not directory:
            raise ConfigurationError("broker='embedded:DIR' needs a directory for the store")
        # Imported late: who talks to a broker elsewhere needs none of it.
        from reliable_mq.runtime.broker_server import (  # noqa: PLC0415
            BrokerOptions,
            BrokerServer,
        )

        options = BrokerOptions(store=Path(directory), port=0, name_server_port=0)
        server = BrokerServer(options)
        self.loop_thread.run(server.start())
        self._broker = server
        return server.name_server_address

    def relay(self, stubs: SqlStubs, clock: DatabaseClock) -> RelayThread:
        """Return the relay's thread, running. It connects when it has something to send."""
        with self._lock:
            if self._relay is None:
                relay = Relay(
                    stubs,
                    self,
                    self._policy.next_time,
                    owner=self.owner,
                    lease=self._settings.relay_lease,
                )
                self._relay = RelayThread(relay, clock.measured_now)
                self._relay.start()
                # A script that ends without close() still sends what it has committed.
                atexit.register(self._relay.close)
            return self._relay

    def hand(self, stubs: Sequence[Stub], written: float) -> None:
        """Hand committed stubs to the relay."""
        if self._relay is not None:
            self._relay.hand(stubs, written)

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send messages; the relay's and the scheduler's `Sender`."""
        return self.loop_thread.run(self.client.send_many(messages))

    def consumer_progress(self, group: str, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Return (committed, maximum) offsets of a consumer group by queue."""
        return self.loop_thread.run(self.client.consumer_progress(group, topic))

    def start_worker(self, consumers: Sequence[Consumer], database: Database) -> None:
        """Start consuming; a second call does nothing."""
        with self._lock:
            if self._worker is None:
                worker = Worker(consumers, database, self.client, self._settings)
                self.loop_thread.run(worker.start())
                self._worker = worker

    @property
    def is_embedded(self) -> bool:
        """Whether the broker runs inside this process, where no other process finds it."""
        return self._settings.broker.startswith(EMBEDDED)

    def start_scheduler(self, run: Callable[[threading.Event], None]) -> None:
        """Run the resend scheduler in a thread of this process; a second call does nothing."""
        with self._lock:
            if self._scheduler is None:
                stopped = threading.Event()
                thread = threading.Thread(
                    target=run, args=(stopped,), name="reliable-mq-resend", daemon=True
                )
                thread.start()
                self._scheduler = (thread, stopped)

    def close(self) -> None:
        """Finish handlers, send what is in hand, close everything; a second call does nothing."""
        with self._lock:
            worker, self._worker = self._worker, None
            relay, self._relay = self._relay, None
            client, self._client = self._client, None
            broker, self._broker = self._broker, None
            thread, self._thread = self._thread, None
            scheduler, self._scheduler = self._scheduler, None
        if relay is not None:
            atexit.unregister(relay.close)
        if scheduler is not None:
            scheduler[1].set()
            scheduler[0].join(self._settings.shutdown_timeout)
        if thread is None or not thread.is_alive:
            if relay is not None:
                relay.close(timeout=0.0)  # it never had anything to send, or cannot
            return
        if worker is not None:
            thread.run(worker.close())
        if relay is not None:
            relay.close(timeout=self._settings.relay_lease)
        if client is not None:
            thread.run(client.close())
        if broker is not None:
            thread.run(broker.close())  # type: ignore[attr-defined]
        thread.close()


class Worker:
    """The consumers of one application in one process, on the running loop."""

    def __init__(
        self,
        consumers: Sequence[Consumer],
        database: Database,
        client: AsyncClient,
        settings: Settings,
    ) -> None:
        self._consumers = consumers
        self._database = database
        self._client = client
        self._settings = settings
        self._leases: RedisLeases | None = None
        self._deliveries: list[Deliveries] = []
        self._running: list[AsyncPushConsumer] = []
        threads = sum(each.concurrency for each in consumers)
        self._threads = ThreadPoolExecutor(max(1, threads), "reliable-mq-handler")

    async def start(self) -> None:
        """Subscribe all consumers."""
        settings = self._settings
        if settings.redis:
            self._leases = RedisLeases(
                settings.redis,
                duplicate_window=settings.duplicate_window,
                timeout=settings.redis_timeout,
            )
        for consumer in self._consumers:
            attempts = Attempts(
                consumer,
                self._database,
                retry_waits=settings.retry_waits,
            )
            deliveries = Deliveries(attempts, self._leases, self._threads)
            deliveries.start()
            self._deliveries.append(deliveries)
            self._running.append(
                await self._client.consume(consumer.subscription(), deliveries.handle)
            )

    async def close(self) -> None:
        """Start no more handlers, wait for those that run, give back what was not begun."""
        await asyncio.gather(*(running.close() for running in self._running))
        for deliveries in self._deliveries:
            await deliveries.close()
        if self._leases is not None:
            await self._leases.close()
        with contextlib.suppress(Exception):
            await self._database.close_async()
        self._threads.shutdown(wait=False)
