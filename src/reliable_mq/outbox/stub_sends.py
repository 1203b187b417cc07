"""One send of stubs: their messages go to a sender, and each stub gets its outcome.

Stubs behind one of the same ordering key that cannot be sent are not sent either. The relay and the
resend scheduler send by this.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from reliable_mq.errors import InvariantBroken, MessageRefused, NotSent
from reliable_mq.message import Message, SendResult, SendStatus
from reliable_mq.outbox.delay import Levelled, asked_again_at, rest_of, send_timed
from reliable_mq.outbox.stub import Position, Stub, message_of
from reliable_mq.refusals import is_illegal

NextTime = Callable[[int, float, float | None], float]
"""(count of sends, now, deliver time) -> when the next send is due, in seconds since the epoch."""


class StubSender(Protocol):
    """What the relay needs of a client."""

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send all messages. Return in their order where each was stored, or its error."""
        ...


class SendOutcome(msgspec.Struct, frozen=True):
    """The result of one send of a stub.

    Attributes:
        message_id: the message id of the stub.
        count: how often the stub was sent, including this send.
        next_time: when the next send is due, in seconds since the epoch.
        position: where the broker stored the message.
        error: why the send failed. None: the broker acknowledged the message.
        is_refused: the message itself is wrong, so that every send of it fails. Or its time is
            too far ahead for the broker; then `count` does not include this send.
        arrives: when the message arrives, if this differs from the stub's time.
        note: the reason for that difference.
    """

    message_id: str
    count: int
    next_time: float
    position: Position | None = None
    error: str | None = None
    is_refused: bool = False
    arrives: float | None = None
    note: str = ""


def send_stubs(
    sender: StubSender,
    stubs: Sequence[Stub],
    next_time: NextTime,
    now: float,
    *,
    are_missed: bool = False,
    confirm_to: str = "",
    consumed_by: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[SendOutcome]:
    """Send each stub once and return the result of each stub that was tried.

    If an earlier message of a queue fails, the client does not try the later ones. These have no
    result and count as not sent. `are_missed`, `confirm_to`, `consumed_by` (by message id): see
    `message_of`.
    """
    sound = _sound(stubs)
    messages: list[Message] = []
    are_timed = False
    for stub in sound:
        delay = None if stub.deliver_time is None else rest_of(stub.deliver_time, now)
        are_timed = are_timed or delay is not None
        known = consumed_by.get(stub.message_id, ())
        messages.append(
            message_of(stub, delay, is_missed=are_missed, confirm_to=confirm_to, consumed_by=known)
        )
    results: list[SendResult | Exception] = []
    levelled: dict[int, Levelled] = {}
    try:
        if are_timed:
            results, levelled = send_timed(sender.send_many, messages)
        elif messages:
            results = sender.send_many(messages)
    except Exception as error:  # noqa: BLE001 - whatever the error is, these sends failed
        results = [error] * len(messages)
    if len(results) != len(messages):
        raise InvariantBroken(f"{len(messages)} messages were sent, {len(results)} results came")
    result_of = {stub.message_id: result for stub, result in zip(sound, results, strict=True)}
    level_of = {sound[place].message_id: level for place, level in levelled.items()}
    outcomes: list[SendOutcome] = []
    shaky: set[tuple[str, str]] = set()
    for stub in stubs:
        result = MessageRefused(stub.flaw) if stub.flaw else result_of.get(stub.message_id)
        if result is None or isinstance(result, NotSent):
            continue
        lane = (stub.topic, stub.ordering_key)
        # A crash may lose an earlier message and keep a later one: that would break their order.
        unsafe = NotSent("an earlier message of its key may not survive a crash")
        judged = unsafe if lane in shaky else result
        level = level_of.get(stub.message_id)
        outcomes.append(_outcome(stub, judged, next_time, now, level))
        if stub.ordering_key and outcomes[-1].error is not None:
            shaky.add(lane)
    return outcomes


def _sound(stubs: Sequence[Stub]) -> list[Stub]:
    """Return the readable stubs, without those behind an unreadable stub of the same key."""
    sound: list[Stub] = []
    held_up: set[tuple[str, str]] = set()
    for stub in stubs:
        lane = (stub.topic, stub.ordering_key)
        if stub.flaw and stub.ordering_key:
            held_up.add(lane)
        elif not stub.flaw and lane not in held_up:
            sound.append(stub)
    return sound


def _outcome(
    stub: Stub,
    result: SendResult | Exception,
    next_time: NextTime,
    now: float,
    level: Levelled | None,
) -> SendOutcome:
    count = stub.count + 1
    # Unconfirmed until its groups have it, a stub outlives a master without slaves (decision 082).
    if isinstance(result, SendResult) and (
        result.status is SendStatus.SEND_OK or (stub.required_groups and result.status.lacks_slaves)
    ):
        queue = result.queue
        position = Position(queue.broker_name, queue.queue_id, result.queue_offset)
        arrives, note = (None, "") if level is None else (now + level.seconds, level.why)
        due = next_time(count, now, stub.deliver_time if arrives is None else arrives)
        return SendOutcome(
            stub.message_id, count, due, position=position, arrives=arrives, note=note
        )
    if isinstance(result, SendResult):  # if nothing is lost, the next send is a duplicate
        why = f"{result.status.name}: {result.status.doubt}"
    else:
        why = f"{type(result).__name__}: {result}"
    if (again := asked_again_at(result, stub.deliver_time, now)) is not None:
        return SendOutcome(stub.message_id, stub.count, again, error=why, is_refused=True)
    due = next_time(count, now, None)  # what is not stored is missed at once, even a delayed one
    is_refused = isinstance(result, MessageRefused) or is_illegal(result)
    return SendOutcome(stub.message_id, count, due, error=why, is_refused=is_refused)
