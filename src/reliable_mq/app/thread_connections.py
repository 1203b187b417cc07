"""The connections of an application: an event loop in a thread, client, broker, relays, workers.

Each part is made when any thread first needs it, and closed once.
"""

import atexit
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reliable_mq.app.connection_checks import alone_in, check_opens, warn_unsigned
from reliable_mq.app.redis_late import check_redis, open_leases
from reliable_mq.client.administering.cluster_facts import ClusterFacts
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.configured import configured
from reliable_mq.client.connecting.name_servers import parse_addresses
from reliable_mq.client.observing.middleware import Middleware
from reliable_mq.confirm.sql_owed_notices import SqlNotices
from reliable_mq.confirm.thread_notices import Notices, NoticeThread
from reliable_mq.consume.asyncio_delivery import HandlerGate
from reliable_mq.consume.asyncio_worker import Worker
from reliable_mq.consume.consumer import Consumer
from reliable_mq.consume.observed_handlers import OutsideHandlers
from reliable_mq.consume.signing import signer_by
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_transactions import Handover
from reliable_mq.errors import ConfigurationError, NoRoute, UsageError, named_setting
from reliable_mq.idempotency.lease_store import LeaseStore
from reliable_mq.message import Half, Message, MessageQueue, SendResult
from reliable_mq.outbox.half_sender import HalfSender
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.resend_policy import ResendPolicy
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.thread_open_halves import OpenHalves
from reliable_mq.outbox.thread_relay import ClientSender, RelayThread
from reliable_mq.outbox.thread_shared_relays import SharedRelays
from reliable_mq.resend.sql_resending import topics_of
from reliable_mq.runtime.forks import call_in_child, leave_to_parent
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.settings import EMBEDDED, Settings
from reliable_mq.telemetry.families import Sample

if TYPE_CHECKING:
    from reliable_mq.runtime.broker_server import BrokerServer
    from reliable_mq.runtime.loop_figures import LoopFigures

OpenLeases = Callable[[], LeaseStore | None]
LOOP_ANSWER_SECONDS = 5.0


class Connections:
    """The connections of one application in one process.

    Invariant: a part is made at most once, and only before `close`. A forked child has no part of
    its parent, and another `owner`.

    Args:
        leases: opens a store of leases instead of Redis, on the loop of the workers.
        middleware: sees messages when they are sent and handled.

    Raises:
        ConfigurationError: an address of a name server or of Redis cannot be read. The embedded
            broker has no directory, or is to use TLS. The client's settings cannot work. `leases`
            cannot be called.
    """

    #: whether relays of this process may send stubs that other processes committed
    shares_relays = True
    records_later = True  # plain sends, where a confirmation may record them first
    #: raises where no broker may be reached
    check_may_connect: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        name: str,
        settings: Settings,
        policy: ResendPolicy,
        leases: OpenLeases | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._middleware = middleware
        check_redis(settings)
        if leases is not None:
            check_opens(leases)
        self._open_leases = leases or partial(open_leases, settings)
        self._name = name
        self._settings = settings
        self._policy = policy
        self._check_broker(settings.broker)
        signer = signer_by(settings)
        self._sign = None if signer is None else signer.signed
        patience = settings.shutdown_timeout_seconds
        self._client_settings = configured(
            settings, producer_group=f"{name}_relay", close_timeout_seconds=patience
        )
        if self.is_embedded and self._client_settings.tls is not None:
            raise ConfigurationError(
                "broker='embedded:DIR' runs inside this process, without TLS: leave out the"
                " settings tls… (RELIABLE_MQ_TLS…)"
            )
        self._begin()
        call_in_child(self._forget_parent)

    def _check_broker(self, broker: str) -> None:
        """Refuse a setting `broker` that names no broker.

        Raises:
            ConfigurationError: an address is wrong, or the directory of an embedded one is missing.
        """
        if not self.is_embedded:
            with named_setting("broker (RELIABLE_MQ_BROKER)"):
                parse_addresses(broker)
        elif broker == EMBEDDED:
            raise ConfigurationError("broker='embedded:DIR' needs a directory for the store")

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self._client: AsyncClient | None = None
        self._broker: BrokerServer | None = None
        self._figures: list[LoopFigures] | None = None  # of the broker, once they are wanted
        self._relays: dict[str, RelayThread] = {}  # by the name of their database
        self._workers: dict[str, Worker] = {}  # by their duty
        self._gate: HandlerGate | None = None  # for the handlers of all workers
        self._notices: dict[str, NoticeThread] = {}  # by the name of their database
        #: half messages that this process sent; its relays have their stubs or will get them
        self.open_halves = OpenHalves()
        self._scheduler: tuple[threading.Thread, threading.Event] | None = None
        self._scheduler_numbers = itertools.count(1)
        self.owner = f"{self._name[:24]}-{os.getpid()}-{os.urandom(4).hex()}"
        #: relays of this process for stubs that other processes committed
        self.shared_relays = SharedRelays(
            self._make_relay,
            f"{self.owner}-s",
            self._settings.relay_lease_seconds,
        )

    def _forget_parent(self) -> None:
        self.shared_relays.forget()
        for relay in self._relays.values():
            atexit.unregister(relay.close)
        leave_to_parent(self._thread, self._client, self._broker, self._relays)
        leave_to_parent(self._workers, self._notices, self.shared_relays)
        self._begin()

    def scheduler_owner(self) -> str:
        """Return a unique owner name for one more resend scheduler of this process."""
        return f"{self.owner}-r{next(self._scheduler_numbers)}"

    @property
    def loop_thread(self) -> LoopThread:
        """The event loop of all asynchronous parts, in its thread."""
        return self._started_loop()

    def _started_loop(self) -> LoopThread:
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread(f"reliable-mq-{self._name}")
            return self._thread

    @property
    def is_alive(self) -> bool:
        """Whether the event loop is running, or was not started yet."""
        return self._thread is None or self._thread.is_alive

    def loop_answers(self) -> bool:
        """Return whether the event loop does a small errand within `LOOP_ANSWER_SECONDS`."""
        return self._thread is None or self._thread.answers(LOOP_ANSWER_SECONDS)

    @property
    def client(self) -> AsyncClient:
        """The client, started; with `embedded:DIR` the broker is started first."""
        # Code on the loop calls this, too. It must not wait for the lock: the thread that holds the
        # lock may be waiting for the loop.
        if (made := self._client) is not None:
            return made
        with self._lock:
            if self._client is None:
                self.check_may_connect()
                warn_unsigned(self._settings)
                client = AsyncClient(
                    self._name_servers(),
                    settings=self._client_settings,
                    middleware=self._outside_handlers(),
                    sign=self._sign,
                )
                self.loop_thread.run(client.start())
                self._client = client
            return self._client

    def _outside_handlers(self) -> list[Middleware]:
        """Return the middleware for the client's own hooks; the workers call the other hooks."""
        return [OutsideHandlers(each) for each in self._middleware]

    def _name_servers(self) -> str:
        broker = self._settings.broker
        if not self.is_embedded:
            return broker
        directory = broker.removeprefix(EMBEDDED)
        # Imported late: an application with another broker does not need it.
        from reliable_mq.runtime import broker_server  # noqa: PLC0415

        options = broker_server.BrokerOptions(store=Path(directory), port=0, name_server_port=0)
        server = broker_server.BrokerServer(options)
        with alone_in(directory):
            self.loop_thread.run(server.start())
        self._broker = server
        return server.name_server_address

    def relay(self, name: str, database: Database, stubs: SqlStubs) -> Handover:
        """Start a database's relay, if it does not run; return its handover for stubs.

        It connects when it has something to send.
        """
        with self._lock:
            if name not in self._relays:
                relay = self._make_relay(database, stubs, self.owner)
                thread = RelayThread(relay, database.clock.measured_now)
                # A script that ends without close() still sends its committed stubs. Python 3.12
                # and newer cannot start a thread at that time, so the loop is started now.
                self._started_loop()
                thread.start()
                atexit.register(thread.close)
                self._relays[name] = thread
            return self._relays[name]

    def _make_relay(self, database: Database, stubs: SqlStubs, owner: str) -> Relay:
        topics, clock = topics_of(database), database.clock
        sender, halves = ClientSender(self), self.open_halves
        return Relay(
            stubs,
            sender,
            self._policy.next_time,
            open_halves=halves.known,
            half_sender=HalfSender(sender, halves, self.commit_halves),
            owner=owner,
            lease=self._settings.relay_lease_seconds,
            confirm_to=database.identity.notice_topic,
            arrives_again=lambda topic: topics.sent(topic, clock.measured_now()),
            may_defer=self.records_later and database.dialect == "postgresql",
        )

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send messages; the `Sender` of the scheduler and of notices."""
        return self.loop_thread.run(self.client.send_many(messages))

    def commit_halves(self, halves: Sequence[Half]) -> list[SendResult | Exception]:
        """Commit half messages; the results are in their order."""
        return self.loop_thread.run(self.client.transactions.commit_many(halves))

    def consumer_progress(self, group: str, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Return (committed, maximum) offsets of a consumer group by queue."""
        return self.loop_thread.run(self.client.consumer_progress(group, topic))

    def cluster_facts(self, groups: Sequence[str], topics: Sequence[str] = ()) -> ClusterFacts:
        """Return facts about the cluster; see `client.administering.cluster_facts`."""
        return self.loop_thread.run(self.client.cluster_facts(groups, topics))

    def topic_exists(self, topic: str) -> bool:
        """Return whether the name servers know a topic.

        Raises:
            Unavailable: no name server answers.
        """
        try:
            self.loop_thread.run(self.client.topic_route(topic))
        except NoRoute:
            return False
        return True

    def start_worker(
        self, duty: str, consumers: Sequence[Consumer], databases: Mapping[str, Database]
    ) -> Worker:
        """Start consumers, and return what runs them; a second call for a duty starts nothing."""
        with self._lock:
            if self._gate is None or not self._workers:  # it belongs to the loop of the workers
                self._gate = HandlerGate()
            if duty not in self._workers:
                notices = {
                    name: self._notices_of(name, databases[name])
                    for name in {each.database for each in consumers}
                }
                worker = Worker(
                    *(consumers, databases, notices, self.client, self._settings),
                    *(self._open_leases, self._middleware, self._gate),
                )
                self.loop_thread.run(worker.start())
                self._workers[duty] = worker
            return self._workers[duty]

    def start_notices(self, databases: Mapping[str, Database]) -> None:
        """Start to send the notices that the consume logs of these databases still owe."""
        with self._lock:
            for name, database in databases.items():
                self._notices_of(name, database)

    def _notices_of(self, name: str, database: Database) -> NoticeThread:
        if name not in self._notices:
            debts = SqlNotices(database.engine, database.logs)
            thread = NoticeThread(Notices(debts, self), database.clock.measured_now, name)
            thread.start()
            self._notices[name] = thread
        return self._notices[name]

    def has_middleware(self, kind: type[Middleware]) -> bool:
        """Whether a middleware of this class observes the messages."""
        return any(isinstance(each, kind) for each in self._middleware)

    def add_middleware(self, middleware: Middleware) -> None:
        """Let one more middleware observe the messages.

        Raises:
            UsageError: the client is made already.
        """
        with self._lock:
            if self._client is not None:
                raise UsageError("register metrics before the first message is sent or consumed")
            self._middleware = (*self._middleware, middleware)

    @property
    def workers(self) -> list[Worker]:
        """The workers that were started in this process."""
        return list(self._workers.values())

    def relay_waiting(self) -> dict[str, int]:
        """Return how many stubs wait in the relays of this process, by database."""
        waiting = self.shared_relays.waiting()
        for name, relay in list(self._relays.items()):
            waiting[name] = waiting.get(name, 0) + relay.waiting
        return waiting

    def broker_samples(self) -> list[Sample]:
        """Return the figures of the embedded broker; the first call begins to note them."""
        if self._broker is not None and self._figures is None:
            self._figures = []
            self.loop_thread.call_soon(self._measure)
        return [sample for each in self._figures or () for sample in each.samples()]

    def _measure(self) -> None:
        if self._broker is not None:
            self._figures = self._broker.measure()

    @property
    def is_embedded(self) -> bool:
        """Whether the broker runs inside this process, where no other process can reach it."""
        return self._settings.broker.startswith(EMBEDDED)

    @property
    def is_consuming(self) -> bool:
        """Whether the application's consumers were started in this process."""
        return "consumers" in self._workers

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
        """Finish handlers, send remaining stubs, close everything; a second call does nothing."""
        with self._lock:
            scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:  # first, because it starts parts that are closed below
            scheduler[1].set()
            scheduler[0].join(self._settings.shutdown_timeout_seconds)
        with self._lock:
            workers, self._workers = list(self._workers.values()), {}
            notices, self._notices = list(self._notices.values()), {}
            relays, self._relays = list(self._relays.values()), {}
            thread = self._thread
        for relay in relays:
            atexit.unregister(relay.close)
        if thread is not None and thread.is_alive:
            for worker in workers:
                thread.run(worker.close())
        can_send = thread is None or thread.is_alive
        timeout = self._settings.relay_lease_seconds if can_send else 0.0
        self.shared_relays.close(timeout)
        for close in [each.close for each in notices] + [each.close for each in relays]:
            close(timeout=timeout)
        with self._lock:  # not earlier: relays that send their remaining stubs need or make them
            client, self._client = self._client, None
            broker, self._broker = self._broker, None
            thread, self._thread = self._thread, None
        if thread is None or not thread.is_alive:
            return
        if client is not None:
            thread.run(client.close())
        if broker is not None:
            thread.run(broker.close())
        thread.close()
