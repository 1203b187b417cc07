"""The synchronous face: the same verbs as `AsyncClient`, over a loop in a background thread."""

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
"""Says what became of a half message that a broker asks for."""


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
        """Start nothing more and pull nothing more, until `resume`.

        See `AsyncPushConsumer.pause`.
        """
        self._thread.run(on_loop(lambda: self._consumer.pause(queues)))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on where `pause` stopped; see `AsyncPushConsumer.resume`."""
        self._thread.run(on_loop(lambda: self._consumer.resume(queues)))

    def lag(self) -> dict[MessageQueue, QueueLag]:
        """Return how far the group is behind in each queue that this member reads.

        See `AsyncPushConsumer.lag`.
        """
        return self._thread.run(on_loop(self._consumer.lag))

    def close(self) -> None:
        """Start nothing more, let what runs finish, commit, unlock and leave the group."""
        self._thread.run(self._consumer.close())


@documented_by(AsyncClient)
class Client(ThreadSending):
    """Sends and consumes without an event loop of the caller's own; may be used by many threads.

    Use it as `with Client(...) as client`, or call `start` and `close`. Every verb raises
    `UsageError` before `start` and after `close`, and `ForkedClient` in a forked process.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: time-outs, limits and intervals.
        middleware: sees what is sent and consumed, see `Middleware`.
        sign: returns a message with its signature, see `AsyncClient`. Called on the client's loop,
            or in the thread that sends.

    Raises:
        ConfigurationError: when `name_servers` does not read, or a middleware is none.
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
        #: topics, groups, offsets, messages and dead letters looked after
        self.admin = Admin(self._started, self._client.admin)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self._client.client_id

    def start(self) -> None:
        """Start the background thread.

        Raises:
            ForkedClient: when it was made before a fork: every member of a group has its own name.
            UsageError: when the client was started before.
        """
        thread = self._thread or LoopThread()
        try:
            thread.run(self._client.start())
        except BaseException:  # also what interrupts the caller
            if thread is not self._thread:
                thread.close()
            raise
        self._thread = thread

    def close(self) -> None:
        """Close consumers and batchers gracefully, end the connections and the background thread.

        In a forked process this does nothing: all of it is the parent's. When something has ended
        the thread, of which the log tells, brokers are told nothing.
        """
        thread = self._thread
        if thread is None or thread.is_foreign:
            return
        try:
            if thread.is_closed:
                thread.close()  # behind it nothing runs on the loop any more
                self._engine.give_batchers_up()
            else:
                thread.run(self._client.close())  # meanwhile handlers may still send
        finally:
            self._thread, self._is_closed = None, True
            thread.close()
            for threads in self._checkers.values():
                threads.close()

    @checked()
    def join_transactions(self, group: str, check: Check) -> None:
        """Answer for the half messages of a producer group, whoever of it sent them.

        Args:
            group: the producer group.
            check: says what became of a half; called in a thread, at most four at a time.

        Raises:
            ConfigurationError: when the group's name is illegal.
        """
        thread, threads = self._started(), Threads(4, f"rmq-{group}")
        thread.run(self._client.transactions.join(group, threads.wrapped(check)))
        replaced, self._checkers[group] = self._checkers.get(group), threads
        if replaced is not None:
            replaced.close()

    def send_half(self, message: Message, group: str, *, timeout: float = 3.0) -> Half:
        """Send a half message of a group that was joined: it is stored and not visible yet.

        See `AsyncClient.send_half`.
        """
        thread = self._started()
        return thread.run(self._client.transactions.send(message, group, timeout=timeout))

    def end_half(self, half: Half, decision: Decision) -> None:
        """End a half by COMMIT or ROLLBACK, and wait until the broker has that stored.

        See `AsyncClient.end_half`.
        """
        self._started().run(self._client.transactions.end(half, decision))

    def consume(self, subscription: Subscription, handler: AnyHandler) -> PushConsumer:
        """Begin to read for a consumer group and return the running consumer.

        With `broadcasting` this client goes on where its file of offsets says, if there is one for
        its `instance_name` and the group (`offset_folder` of the settings).

        Args:
            subscription: what is read, and how.
            handler: gets 1..`batch` messages of one topic, returns one outcome for each,
                `Consumed`, `Retry` or `Reject`, or one for all; the last two may be raised. Calls
                of a `def` run in `concurrency` threads, those of an `async def` as so many tasks on
                the client's own loop, which they must not block.

        Raises:
            UsageError: when the handler is no function, or this client consumes for the group
                already.
            ConfigurationError: when a broker cannot filter by an SQL92 expression, with its words;
                or when another client of this name broadcasts to the group.
            StoreError: when a file of offsets cannot be used.
        """
        thread = self._started()
        return PushConsumer(thread, thread.run(self._client.consume(subscription, handler)))

    def simple_consumer(self, subscription: Subscription) -> SimpleConsumer:
        """Begin to read for a consumer group whose messages are received and acknowledged singly.

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
        """Return a consumer that is asked for messages, and reads nothing yet.

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
        """Create a topic at the master of every broker, or give it so many queues.

        See `AsyncClient.create_topic`.
        """
        self._started().run(self._client.create_topic(topic, queues))

    def consumer_progress(self, group: str, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        """Return (committed, maximum) offsets of a group in each readable queue of a topic.

        See `AsyncClient.consumer_progress`.
        """
        return self._started().run(self._client.consumer_progress(group, topic))

    def cluster_facts(self, groups: Sequence[str] = (), topics: Sequence[str] = ()) -> ClusterFacts:
        """Return what name servers and brokers say of themselves.

        See `AsyncClient.cluster_facts`.
        """
        return self._started().run(self._client.cluster_facts(groups, topics))

    def topic_route(self, topic: str) -> Route:
        """Return where `topic` is, asked from the name servers now.

        See `AsyncClient.topic_route`.
        """
        return self._started().run(self._client.topic_route(topic))
