"""The synchronous client: the verbs of `AsyncClient`, run on a loop in a background thread."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Self

from reliable_mq.client.administering.cluster_facts import ClusterFacts
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.client.asyncio_client import DEFAULT_SETTINGS, AsyncClient
from reliable_mq.client.checked import checked
from reliable_mq.client.connecting.routes import Route
from reliable_mq.client.consuming.allocation import Allocation, average
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.consumer_group import QueueLag
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.consuming.thread_handling import AnyHandler, Threads
from reliable_mq.client.consuming.thread_pull_consumer import PullConsumer
from reliable_mq.client.consuming.thread_simple_consumer import SimpleConsumer
from reliable_mq.client.documented import documented_by
from reliable_mq.client.observing.middleware import Middleware
from reliable_mq.client.sending.outgoing import Sign
from reliable_mq.client.sending.thread_sending import ThreadSending
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import CheckBack, Decision, Half, Message, MessageQueue
from reliable_mq.runtime.loop_thread import LoopThread, on_loop

Check = Callable[[CheckBack], Decision]
"""Decides the transaction of a half message for which a broker sends a check-back."""


@documented_by(AsyncPushConsumer)
class PushConsumer:
    """A running consumer. Made by `Client.consume`."""

    def __init__(self, thread: LoopThread, consumer: AsyncPushConsumer) -> None:
        self._thread = thread
        self._consumer = consumer

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues that this consumer reads now."""
        return self._consumer.queues

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start no handler and pull no messages until `resume`.

        See `AsyncPushConsumer.pause`.
        """
        self._thread.run(on_loop(lambda: self._consumer.pause(queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue after `pause`; see `AsyncPushConsumer.resume`."""
        self._thread.run(on_loop(lambda: self._consumer.resume(queues)))

    def lag(self) -> dict[MessageQueue, QueueLag]:
        """Return how far the group is behind in each queue that this member reads.

        See `AsyncPushConsumer.lag`.
        """
        return self._thread.run(on_loop(self._consumer.lag))

    def close(self) -> None:
        """Start no more handlers, wait for the running ones, commit, unlock and leave the group."""
        self._thread.run(self._consumer.close())


@documented_by(AsyncClient)
class Client(ThreadSending):
    """Sends and consumes for programs without an event loop. Safe for use by many threads.

    Use it as `with Client(...) as client`, or call `start` and `close`. Every verb raises
    `UsageError` before `start` and after `close`, and `ForkedClient` in a forked process.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: timeouts, limits and intervals.
        middleware: sees messages that are sent and consumed, see `Middleware`.
        sign: returns a message with its signature, see `AsyncClient`. Called on the client's loop,
            or in the thread that sends.

    Raises:
        ConfigurationError: when `name_servers` cannot be parsed, or an object is no middleware.
    """

    def __init__(
        self,
        name_servers: str,
        *,
        settings: ClientSettings = DEFAULT_SETTINGS,
        middleware: Sequence[Middleware] = (),
        sign: Sign | None = None,
    ) -> None:
        self._client = AsyncClient(
            name_servers, settings=settings, middleware=middleware, sign=sign
        )
        super().__init__(self._client)
        self._checkers: dict[str, Threads] = {}  # by producer group
        #: manages topics, groups, offsets, messages and dead letters
        self.admin = Admin(self._started, self._client.admin)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """The client's name at brokers."""
        return self._client.client_id

    def start(self) -> None:
        """Start the background thread.

        Raises:
            ForkedClient: when the client was made before a fork: each process needs its own name.
            UsageError: when the client was started before.
        """
        thread = self._thread or LoopThread()
        try:
            thread.run(self._client.start())
        except BaseException:  # also an interrupt of the caller
            if thread is not self._thread:
                thread.close()
            raise
        self._thread = thread

    def close(self) -> None:
        """Close consumers and batchers gracefully, end the connections and the background thread.

        In a forked process this does nothing: connections and thread belong to the parent. If an
        exception has ended the thread (see the log), brokers get no goodbye.
        """
        thread = self._thread
        if thread is None or thread.is_foreign:
            return
        try:
            if thread.is_closed:
                thread.close()  # after this, nothing runs on the loop
                self._engine.abandon_batchers()
            else:
                thread.run(self._client.close())  # handlers may still send meanwhile
        finally:
            self._thread, self._is_closed = None, True
            thread.close()
            for threads in self._checkers.values():
                threads.close()

    @checked()
    def join_transactions(self, group: str, check: Check) -> None:
        """Answer check-backs for the half messages of a producer group, of all its members.

        Args:
            group: the producer group.
            check: decides a half message. Called in a thread, at most four calls at a time.

        Raises:
            ConfigurationError: when the group's name is illegal.
        """
        thread, threads = self._started(), Threads(4, f"rmq-{group}")
        thread.run(self._client.transactions.join(group, threads.wrapped(check)))
        replaced, self._checkers[group] = self._checkers.get(group), threads
        if replaced is not None:
            replaced.close()

    def send_half(self, message: Message, group: str, *, timeout: float = 3.0) -> Half:
        """Send a half message of a joined group. It is stored, but not visible yet.

        See `AsyncClient.send_half`.
        """
        thread = self._started()
        return thread.run(self._client.transactions.send(message, group, timeout=timeout))

    def end_half(self, half: Half, decision: Decision) -> None:
        """End a half message by COMMIT or ROLLBACK. Return when the broker has stored the decision.

        See `AsyncClient.end_half`.
        """
        self._started().run(self._client.transactions.end(half, decision))

    def consume(self, subscription: Subscription, handler: AnyHandler) -> PushConsumer:
        """Start a consumer of a consumer group and return it.

        With `broadcasting`, the consumer continues at the offsets in its file, if there is one. The
        setting `offset_folder` has a file for each `instance_name` and group.

        Args:
            subscription: which messages to read, and how.
            handler: gets 1..`batch` messages of one topic, returns one outcome for each,
                `Consumed`, `Retry` or `Reject`, or one for all; the last two may be raised. Calls
                of a `def` run in `concurrency` threads, those of an `async def` as so many tasks on
                the client's own loop, which they must not block.

        Raises:
            UsageError: when the handler is no function, or this client already consumes for the
                group.
            ConfigurationError: when a broker rejects an SQL92 expression, with its text; or when
                another client with this name broadcasts to the group.
            StoreError: when a file of offsets cannot be used.
        """
        thread = self._started()
        return PushConsumer(thread, thread.run(self._client.consume(subscription, handler)))

    def simple_consumer(self, subscription: Subscription) -> SimpleConsumer:
        """Start a consumer whose messages the application receives and acknowledges one by one.

        See `AsyncClient.simple_consumer`.
        """
        thread = self._started()
        return SimpleConsumer(thread, thread.run(self._client.simple_consumer(subscription)))

    def pull_consumer(
        self,
        group: str,
        *,
        from_where: Literal["first", "last", "timestamp"] = "first",
        from_time_ms: int = 0,
        auto_commit: bool | None = None,
        allocation: Allocation = average,
    ) -> PullConsumer:
        """Return a consumer that the application polls for messages. It reads nothing yet.

        See `AsyncClient.pull_consumer`.
        """
        thread = self._started()
        consumer = self._client.pull_consumer(
            group,
            from_where=from_where,
            from_time_ms=from_time_ms,
            auto_commit=auto_commit,
            allocation=allocation,
        )
        return PullConsumer(thread, consumer)

    def create_topic(self, topic: str, queues: int = 8) -> None:
        """Create a topic at the master of every broker, or change its number of queues.

        See `AsyncClient.create_topic`.
        """
        self._started().run(self._client.create_topic(topic, queues))

    def consumer_progress(self, group: str, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Return (committed, maximum) offsets of a group in each readable queue of a topic.

        See `AsyncClient.consumer_progress`.
        """
        return self._started().run(self._client.consumer_progress(group, topic))

    def cluster_facts(self, groups: Sequence[str] = (), topics: Sequence[str] = ()) -> ClusterFacts:
        """Return facts about name servers and brokers, as they report them.

        See `AsyncClient.cluster_facts`.
        """
        return self._started().run(self._client.cluster_facts(groups, topics))

    def topic_route(self, topic: str) -> Route:
        """Return the route of `topic`. The name servers are asked now.

        See `AsyncClient.topic_route`.
        """
        return self._started().run(self._client.topic_route(topic))
