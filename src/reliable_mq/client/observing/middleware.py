"""Middleware: the life of messages at a client, as hooks that are empty but for their docstrings.

Receives what a client is about to do and what became of it. Refuses to decide: whatever a hook
raises is logged and passed over, so that no message is lost for being looked at (`asyncio_hooks`
calls the hooks). The one word that a hook has is `Skip`.
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
"""Where a message is stored, why it is not (or nobody knows), None: no answer was asked for."""


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
    """Whose messages these are: the client's id, its namespace, its usual producer group.

    `address_of` returns the address, "host:port", of a broker by its name; "" when no route names
    it.
    """

    client_id: str = ""
    producer_group: str = ""
    namespace: str = ""
    address_of: Callable[[str], str] = lambda _: ""


class Sending(msgspec.Struct, kw_only=True, eq=False):
    """One call that sends messages, from before its first try until after its last.

    Attributes:
        verb: the verb of the client.
        messages: what is sent, each with its message id. `before_send` may put another message into
            a place; one that could not be sent as it is then is sent as it was.
        group: the producer group.
        origin: whose.
        begun: when, seconds on a clock that never jumps.
        begun_ms: the same, milliseconds since the epoch.
        seconds: how long it took; 0.0 before the end.
        results: one for each message; empty before the end.
        posts: how many requests it took where no answer is asked for, so that no result says it.
        notes: what a middleware keeps from its first hook for its second, under itself.
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
        """How many requests the message took that took most; each result knows its own number.

        0 before the end, and when none was made.
        """
        return max((self._tries_of(each) for each in self.results), default=0)

    def _tries_of(self, outcome: SendOutcome) -> int:
        return self.posts if outcome is None else getattr(outcome, "tries", 0)


class Delivery(msgspec.Struct, kw_only=True, eq=False):
    """One call of a handler with messages of one topic, or their hand-over to who asked for them.

    Attributes:
        verb: "process" around a handler, "receive" when they are handed to a caller of `poll` or
            `receive`: then both hooks follow each other and there is no outcome.
        group: the consumer group.
        messages: what is handled.
        origin: whose.
        begun: when, seconds on a clock that never jumps.
        begun_ms: the same, milliseconds since the epoch.
        seconds: how long it took, of "receive" how long the caller waited; 0.0 before the end.
        outcomes: one for each message; None before the end, when the handler failed, and for
            "receive".
        error: why it failed; what is no outcome is a `UsageError`.
        notes: what a middleware keeps from its first hook for its second, under itself.
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
    """How a half message was ended: committed or rolled back, and whether the broker heard it.

    `error` is why it may not have; None also for what is sent without waiting for an answer.
    """

    half: Half
    decision: Decision
    origin: ClientIdentity
    begun_ms: int
    error: BaseException | None = None


class Recall(msgspec.Struct, kw_only=True, eq=False, frozen=True):
    """How a timed message was taken back, or why it was not.

    Attributes:
        topic: of the message.
        message_id: the message's.
        group: the producer group.
        origin: whose.
        begun_ms: when, milliseconds since the epoch.
        error: why it was not taken back, or why nobody knows; None when it was.
    """

    topic: str
    message_id: str
    group: str
    origin: ClientIdentity
    begun_ms: int
    error: BaseException | None = None


class ObservedClient(Protocol):
    """What a middleware may use of a client, on its loop."""

    settings: ClientSettings
    client_id: str

    @property
    def routes(self) -> RouteCache:
        """The routes that the client has met."""

    @property
    def members(self) -> Collection[Member]:
        """The client's members of consumer groups."""

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end. No hook sees what it sends."""


class Middleware:
    """Looks at messages. Override the hooks that you need, and give it to a client.

    Hooks of the first kind run in the order of the middlewares, those of the second (`after_…`) the
    other way round. Hooks of sending run on the client's event loop, which they must not block, in
    the context (`contextvars`) of who sends. Those of consuming run where the handler runs, in its
    thread or its task, so that what the first one sets is there in the handler.
    One object may serve several clients: what belongs to a call goes into its `notes`.
    """

    async def after_start(self, client: ObservedClient) -> None:
        """Called on a client's loop when it has started."""

    async def before_close(self, client: ObservedClient) -> None:
        """Called on a client's loop when its consumers are closed, and its connections are not.

        It is cancelled after five seconds.
        """

    def before_send(self, sending: Sending) -> None:
        """Called once for each call that sends, before the first try."""

    def after_send(self, sending: Sending) -> None:
        """Called when all tries have ended, however that was."""

    def after_end(self, ending: Ending) -> None:
        """Called when a half message was committed or rolled back, or that failed."""

    def after_recall(self, recall: Recall) -> None:
        """Called when a timed message was taken back, or was not."""

    def before_consume(self, delivery: Delivery) -> None:
        """Called before a handler.

        Raises:
            Skip: when the handler shall not be called. Other errors are logged and passed over.
        """

    def after_consume(self, delivery: Delivery) -> None:
        """Called when a handler has returned, raised or was cancelled; also when it was skipped."""


def check_middleware(middleware: Sequence[Middleware]) -> tuple[Middleware, ...]:
    """Return middlewares that an application gave.

    Raises:
        ConfigurationError: when one is no object of the class, but the class itself say; or when
            it is given alone.
    """
    if not isinstance(middleware, Sequence):
        raise ConfigurationError(f"middleware is {middleware!r:.200}: give a list of them")
    for each in middleware:
        if not isinstance(each, Middleware):
            raise ConfigurationError(f"middleware {each!r:.200} is no object of class Middleware")
    return tuple(middleware)
