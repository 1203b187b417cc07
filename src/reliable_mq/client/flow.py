"""Flows: all client logic, written once, without sockets and clocks.

A flow is a generator. It yields a step, and is resumed with the step's result:

    Call      a request and the timeout of its reply      -> Command
    CallAll   several requests at the same time           -> [Command | ReliableMQError]
    Post      a one-way request                           -> None, after it is handed over
    Once      a flow that several callers may share       -> the flow's result
    Together  several flows at the same time              -> [result of each flow]
    Wait      a number of seconds                         -> None
    Work      a function that is slow or touches files    -> the function's result
    Now       the time                                    -> Instant

A failed call raises inside the flow: `ConnectionLost` or `RequestTimeout`. A reply with an error
code is a normal result. The asyncio engine runs flows over connections. Tests run the same flows
with scripted results.
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
        seconds: monotonic clock; it may stop while the machine sleeps.
        epoch_ms: milliseconds since the epoch.
        lease_seconds: monotonic clock that includes the machine's sleep. Use it for locks and
            leases, which a broker gives to another client after they expire.
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
    """Send all calls at the same time; results in the order of the calls, failures as values."""

    calls: tuple[Call, ...]


class Post(msgspec.Struct, frozen=True):
    """Send a one-way command to `address`."""

    address: str
    command: Command


class Wait(msgspec.Struct, frozen=True):
    """Continue after `seconds`."""

    seconds: float


class Work(msgspec.Struct, frozen=True):
    """Call `function` where it blocks no other flow."""

    function: Callable[[], Any]


class Now(msgspec.Struct, frozen=True):
    """Return the time."""


class Once(msgspec.Struct, frozen=True):
    """Run `flow`, or wait for a running flow with the same `key`."""

    key: tuple[str, ...]
    flow: Callable[[], Generator[Any, Any, Any]]


class Together(msgspec.Struct, frozen=True):
    """Run all flows at the same time; results in their order. No flow may raise."""

    flows: tuple[Generator[Any, Any, Any], ...]


Step = Call | CallAll | Post | Once | Together | Wait | Work | Now
Flow = Generator[Step, Any, T]
"""A generator of steps that returns T. The functions below give each step's result its type."""

NOW = Now()
"""The step that a flow yields for the time. A hot flow yields it, and `Call`, without a function
between."""


def call(address: str, command: Command, timeout: float) -> Flow[Command]:
    """Return the reply, whatever its code."""
    answer: Command = yield Call(address, command, timeout)
    return answer


def call_all(calls: Sequence[Call]) -> Flow[list[Command | ReliableMQError]]:
    """Return the replies or errors, in the order of `calls`."""
    if not calls:
        return []
    answers: list[Command | ReliableMQError] = yield CallAll(tuple(calls))
    return answers


def once(key: tuple[str, ...], flow: Callable[[], Flow[T]]) -> Flow[T]:
    """Return the result of `flow`. Callers with the same key at the same time share one run."""
    answer: T = yield Once(key, flow)
    return answer


def together(flows: Sequence[Flow[T]]) -> Flow[list[T]]:
    """Run flows at the same time and return their results in order. No flow may raise."""
    answers: list[T] = yield Together(tuple(flows))
    return answers


def work(function: Callable[[], T]) -> Flow[T]:
    """Return the result of `function`, or raise its exception."""
    answer: T = yield Work(function)
    return answer


def now() -> Flow[Instant]:
    """Return the time."""
    instant: Instant = yield NOW
    return instant


def reply_of(answer: Command | ReliableMQError) -> Command:
    """Return the reply from a result of `call_all`, or raise the error."""
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
