"""Flows: what the client does, written once, without a socket or a clock.

A flow is a generator. It yields what it wants from the world and is resumed with the answer:

    Call      a request and the time to wait for its reply      -> Command
    CallAll   several requests at once                          -> [Command | ReliableMQError]
    Post      a one-way request                                 -> None, once it is handed over
    Once      a flow that others may want too: it runs once     -> what that flow returns
    Together  several flows at once                             -> [what each of them returns]
    Wait      some seconds                                      -> None
    Work      a function that takes a while or touches files    -> what it returns
    Now       the time                                          -> Instant

A call that fails raises inside the flow: `ConnectionLost` or `RequestTimeout`. A reply that carries
an error code is an answer like any other. The asyncio shell drives flows over connections, a test
drives the same flows over a script.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import msgspec

from reliable_mq.errors import ReliableMQError
from reliable_mq.wire.command import Command
from reliable_mq.wire.remote_faults import remote_error

T = TypeVar("T")


class Instant(msgspec.Struct, frozen=True, gc=False):
    """A point in time.

    Attributes:
        seconds: on a clock that never jumps; it may stand still while the machine sleeps.
        epoch_ms: milliseconds since the epoch.
        lease_seconds: on a clock that never goes back and goes on while the machine sleeps: by it
            ages what a broker grants for a time, and gives to somebody else afterwards.
    """

    seconds: float
    epoch_ms: int
    lease_seconds: float


class Call(msgspec.Struct, frozen=True):
    """Send `command` to `address` ("host:port") and wait at most `timeout` seconds."""

    address: str
    command: Command
    timeout: float


class CallAll(msgspec.Struct, frozen=True):
    """Send all calls at once; the answers come in their order, failures as values."""

    calls: tuple[Call, ...]


class Post(msgspec.Struct, frozen=True):
    """Send a one-way command to `address`."""

    address: str
    command: Command


class Wait(msgspec.Struct, frozen=True):
    """Go on after `seconds`."""

    seconds: float


class Work(msgspec.Struct, frozen=True):
    """Call `function` where that keeps nobody else waiting."""

    function: Callable[[], Any]


class Now(msgspec.Struct, frozen=True):
    """Tell the time."""


class Once(msgspec.Struct, frozen=True):
    """Run `flow`, or wait for the one that runs already under the same `key`."""

    key: tuple[str, ...]
    flow: Callable[[], Generator[Any, Any, Any]]


class Together(msgspec.Struct, frozen=True):
    """Run all flows at once; what they return comes in their order. None of them may raise."""

    flows: tuple[Generator[Any, Any, Any], ...]


Step = Call | CallAll | Post | Once | Together | Wait | Work | Now
Flow = Generator[Step, Any, T]
"""A generator of steps that returns T. Its answers are typed by the functions below."""

_NOW = Now()


def call(address: str, command: Command, timeout: float) -> Flow[Command]:
    """Return the reply, whatever its code."""
    answer: Command = yield Call(address, command, timeout)
    return answer


def call_all(calls: Sequence[Call]) -> Flow[list[Command | ReliableMQError]]:
    """Return the replies, or what went wrong, in the order of `calls`."""
    if not calls:
        return []
    answers: list[Command | ReliableMQError] = yield CallAll(tuple(calls))
    return answers


def once(key: tuple[str, ...], flow: Callable[[], Flow[T]]) -> Flow[T]:
    """Return what `flow` returns, running it once for all who ask at the same time."""
    answer: T = yield Once(key, flow)
    return answer


def together(flows: Sequence[Flow[T]]) -> Flow[list[T]]:
    """Return what flows return that raise nothing, in their order; they run side by side."""
    answers: list[T] = yield Together(tuple(flows))
    return answers


def work(function: Callable[[], T]) -> Flow[T]:
    """Return what `function` returns; what it raises is raised here."""
    answer: T = yield Work(function)
    return answer


def now() -> Flow[Instant]:
    """Return the time."""
    instant: Instant = yield _NOW
    return instant


def reply_of(answer: Command | ReliableMQError) -> Command:
    """Return the reply among the answers of `call_all`, or raise what went wrong."""
    if isinstance(answer, ReliableMQError):
        raise answer
    return answer


def succeeded(reply: Command) -> Command:
    """Return `reply` when its code is 0.

    Raises:
        RemoteError: when it carries another code.
    """
    if reply.code != 0:
        raise remote_error(reply.code, reply.remark)
    return reply
