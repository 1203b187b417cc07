"""Middleware: hooks for the events of a client's messages. Override the hooks that you need.

Hooks receive what a client is about to do, and the outcome. They cannot decide: exceptions of hooks
are logged and ignored, so that observing loses no message (`asyncio_hooks` calls the hooks). The
only exception with an effect is `Skip`.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from reliable_mq.client.connecting.membership import Member
from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.flow import Flow
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import Decision, Half, Message, ReceivedMessage, SendResult
from reliable_mq.outcomes import CONSUMED, Outcome, checked_outcome

T = TypeVar("T")

SendVerb = Literal[
    "send", "send_oneway", "send_batch", "send_many", "send_half", "batcher", "reply"
]
SendOutcome = SendResult | BaseException | None
"""The result of a stored message, or its error. None: a one-way send, without an answer."""


class Skip(Exception):
    """Raised by `before_consume`: the handler is not called, and `outcome` counts for all messages.

    Args:
        outcome: what becomes of them, by default that they are done with: `Consumed`, `Retry` or
            `Reject`, as a handler returns them.
    """

    def __init__(self, outcome: Outcome | type[Outcome] = CONSUMED) -> None:
        super().__init__(f"skipped: {outcome!r}")
        self.outcome: Outcome = checked_outcome(outcome) if isinstance(outcome, type) else outcome


class ClientIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The client of the messages: its id, its namespace, its default producer group.

    `address_of` returns the address, "host:port", of a broker by its name; "" when no route has
    it.
    """

    client_id: str = ""
    producer_group: str = ""
    namespace: str = ""
    address_of: Callable[[str], str] = lambda _: ""


class Sending(msgspec.Struct, kw_only=True, eq=False):
    """One call that sends messages, from before its first attempt until after its last.

    Attributes:
        verb: the verb of the client.
        messages: the messages to send, with ids. `before_send` may replace a message. If the new
            message cannot be sent, the original is sent.
        group: the producer group.
        origin: identifies the client.
        begun: start time, seconds on a monotonic clock.
        begun_ms: start time, milliseconds since the epoch.
        seconds: the duration; 0.0 before the end.
        results: one for each message; empty before the end.
        posts: number of requests of a one-way send; results count the requests of other sends.
        notes: a place where each middleware can keep data between its hooks, by middleware.
    """

    verb: SendVerb
    messages: list[Message]
    group: str
    origin: ClientIdentity
    begun: float
    begun_ms: int
    seconds: float = 0.0
    results: Sequence[SendOutcome] = ()
    posts: int = 1
    notes: dict[object, Any] = msgspec.field(default_factory=dict)

    @property
    def tries(self) -> int:
        """The highest number of requests for one message; each result has its own number.

        0 before the end, and when no request was sent.
        """
        return max((self._tries_of(each) for each in self.results), default=0)

    def _tries_of(self, outcome: SendOutcome) -> int:
        return self.posts if outcome is None else getattr(outcome, "tries", 0)


class Delivery(msgspec.Struct, kw_only=True, eq=False):
    """One call of a handler with messages of one topic, or the return of messages to a caller.

    Attributes:
        verb: "process" for a handler; "receive" for a caller of `poll` or `receive`. Then the two
            hooks follow each other, and there is no outcome.
        group: the consumer group.
        messages: the messages.
        origin: identifies the client.
        begun: start time, seconds on a monotonic clock.
        begun_ms: start time, milliseconds since the epoch.
        seconds: the duration; for "receive", how long the caller waited. 0.0 before the end.
        outcomes: one for each message; None before the end, when the handler failed, and for
            "receive".
        error: the error of a failed handler; an invalid outcome is a `UsageError`.
        notes: a place where each middleware can keep data between its hooks, by middleware.
    """

    verb: Literal["process", "receive"]
    group: str
    messages: Sequence[ReceivedMessage]
    origin: ClientIdentity
    begun: float
    begun_ms: int
    seconds: float = 0.0
    outcomes: Sequence[Outcome] | None = None
    error: BaseException | None = None
    notes: dict[object, Any] = msgspec.field(default_factory=dict)

    @property
    def topic(self) -> str:
        """The topic of the messages."""
        return self.messages[0].topic


class Ending(msgspec.Struct, kw_only=True, eq=False, frozen=True):
    """The end of a half message: the decision, and whether the broker received it.

    `error` is the reason if the broker may not have it. None also for a one-way request.
    """

    half: Half
    decision: Decision
    origin: ClientIdentity
    begun_ms: int
    error: BaseException | None = None


class Recall(msgspec.Struct, kw_only=True, eq=False, frozen=True):
    """The recall of a timed message, or the reason why it failed.

    Attributes:
        topic: topic of the message.
        message_id: the message's id.
        group: the producer group.
        origin: identifies the client.
        begun_ms: start time, milliseconds since the epoch.
        error: why it was not recalled, or why that is unknown; None after a successful recall.
    """

    topic: str
    message_id: str
    group: str
    origin: ClientIdentity
    begun_ms: int
    error: BaseException | None = None


class ObservedClient(Protocol):
    """The part of a client that a middleware may use, on the client's loop."""

    settings: ClientSettings
    client_id: str

    @property
    def routes(self) -> RouteCache:
        """The routes that the client knows."""

    @property
    def members(self) -> Collection[Member]:
        """The client's members of consumer groups."""

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end. No hook sees its sends."""


class Middleware:
    """Observes messages. Override the hooks that you need, and pass an object to a client.

    `before_…` hooks run in the order of the middlewares, `after_…` hooks in reverse order. Hooks of
    sending run on the client's event loop, and must not block it. They run in the sender's context
    (`contextvars`). Hooks of consuming run in the handler's thread or task, so that the handler
    sees the context variables that they set.
    One object may serve several clients. Keep data of a call in its `notes`.
    """

    async def after_start(self, client: ObservedClient) -> None:
        """Called on a client's loop after its start."""

    async def before_close(self, client: ObservedClient) -> None:
        """Called on a client's loop after its consumers are closed, and before its connections are.

        It is cancelled after five seconds.
        """

    def before_send(self, sending: Sending) -> None:
        """Called once for each call that sends, before the first attempt."""

    def after_send(self, sending: Sending) -> None:
        """Called after all attempts, with any result."""

    def after_end(self, ending: Ending) -> None:
        """Called after a half message was committed or rolled back, or after that failed."""

    def after_recall(self, recall: Recall) -> None:
        """Called after a timed message was recalled, or after that failed."""

    def before_consume(self, delivery: Delivery) -> None:
        """Called before a handler.

        Raises:
            Skip: to skip the handler. Other errors are logged and ignored.
        """

    def after_consume(self, delivery: Delivery) -> None:
        """Called after a handler has returned, raised, or was cancelled or skipped."""


def check_middleware(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Check and return an application's middlewares.

    Raises:
        ConfigurationError: when an object is not a `Middleware`, for example the class itself; or
            when the argument is not a list.
    """
    if not isinstance(middleware, Sequence):
        raise ConfigurationError(f"middleware is {middleware!r:.200}: give a list of them")
    for each in middleware:
        if not isinstance(each, Middleware):
            raise ConfigurationError(f"middleware {each!r:.200} is not an object of Middleware")
    return tuple(middleware)
