"""What a type checker compares a handler with. Types only: at run time `plan_of` checks handlers.

A type checker knows parameters by their place, and `@mq.consumer` fills them by their annotation.
So each order of payload, session and message is a type of its own here.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
    overload,
)

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.idempotency.key_reading import KeySource
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import Outcome

Answer = Outcome | type[Outcome] | None
"""What a handler returns. At run time, any other value means consumed."""
AsyncAnswer = Awaitable[Answer]
"""What an `async def` handler returns."""

Handler = (
    Callable[[], Answer]
    | Callable[[Any], Answer]
    | Callable[[Any, Session], Answer]
    | Callable[[Any, ReceivedMessage], Answer]
    | Callable[[Session, Any], Answer]
    | Callable[[ReceivedMessage, Any], Answer]
    | Callable[[Any, Session, ReceivedMessage], Answer]
    | Callable[[Any, ReceivedMessage, Session], Answer]
    | Callable[[Session, Any, ReceivedMessage], Answer]
    | Callable[[Session, ReceivedMessage, Any], Answer]
    | Callable[[ReceivedMessage, Any, Session], Answer]
    | Callable[[ReceivedMessage, Session, Any], Answer]
)
"""A `def` handler. `Any` is the place of the payload."""
AsyncHandler = (
    Callable[[], AsyncAnswer]
    | Callable[[Any], AsyncAnswer]
    | Callable[[Any, AsyncSession], AsyncAnswer]
    | Callable[[Any, ReceivedMessage], AsyncAnswer]
    | Callable[[AsyncSession, Any], AsyncAnswer]
    | Callable[[ReceivedMessage, Any], AsyncAnswer]
    | Callable[[Any, AsyncSession, ReceivedMessage], AsyncAnswer]
    | Callable[[Any, ReceivedMessage, AsyncSession], AsyncAnswer]
    | Callable[[AsyncSession, Any, ReceivedMessage], AsyncAnswer]
    | Callable[[AsyncSession, ReceivedMessage, Any], AsyncAnswer]
    | Callable[[ReceivedMessage, Any, AsyncSession], AsyncAnswer]
    | Callable[[ReceivedMessage, AsyncSession, Any], AsyncAnswer]
)
"""An `async def` handler."""
HandlerWithoutPayload = (
    Callable[[], Answer | AsyncAnswer]
    | Callable[[Session], Answer]
    | Callable[[AsyncSession], AsyncAnswer]
    | Callable[[ReceivedMessage], Answer | AsyncAnswer]
    | Callable[[Session, ReceivedMessage], Answer]
    | Callable[[ReceivedMessage, Session], Answer]
    | Callable[[AsyncSession, ReceivedMessage], AsyncAnswer]
    | Callable[[ReceivedMessage, AsyncSession], AsyncAnswer]
)
"""A handler that does not ask for the payload."""

F = TypeVar("F", bound=Handler | AsyncHandler)
G = TypeVar("G", bound=HandlerWithoutPayload)
R = TypeVar("R", bound=Answer | AsyncAnswer)
P = ParamSpec("P")
T = TypeVar("T")


class PayloadHandlers(Protocol[T]):
    """The decorator of `@mq.consumer(topic)`, if the topic says the type of its payloads.

    The payload is the handler's first parameter, or the handler does not ask for it.
    """

    @overload
    def __call__(
        self, function: Callable[Concatenate[T, P], R], /
    ) -> Callable[Concatenate[T, P], R]: ...
    @overload
    def __call__(self, function: G, /) -> G: ...


class ConsumerOptions(TypedDict, total=False):
    """The options of `ReliableMQ.consumer`, which describes them."""

    group: Required[str]
    tag: str
    ordered: bool
    batch: int
    max_attempts: int
    retry_waits: Sequence[float] | None
    log_receipt: bool
    lease: float | None
    concurrency: int
    database: str
    idempotent_by: KeySource | None
    by: Literal["queue", "message"]


class TopicOptions(TypedDict, total=False):
    """The options of `ReliableMQ.topic` beside the payload; it describes them."""

    groups: Sequence[str] | None
    envelope: str | None
    sensitive: Sequence[str]
