"""The relay's sender with halves: it sends a stub whose half is at a broker by committing the half.

Receives the relay's messages. Plain messages go to the client's `send_many`, the others are commits
of their halves. Keeps the order of each ordering key across both ways.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from reliable_mq.errors import NotSent
from reliable_mq.message import Half, Message, SendResult
from reliable_mq.outbox.relay import StubSender

CommitMany = Callable[[Sequence[Half]], list[SendResult | Exception]]
Item = tuple[int, Message]


class KnownHalves(Protocol):
    """The open halves of this process; see `thread_open_halves`."""

    def send(self, message_ids: Collection[str]) -> dict[str, Half]: ...

    def note_ended(self, message_id: str, *, acknowledged: bool) -> None: ...


class HalfSender:
    """A `StubSender` that commits halves.

    Args:
        sender: sends plain messages.
        halves: knows which messages are halves.
        commit_many: commits halves; the results are in their order.
    """

    def __init__(self, sender: StubSender, halves: KnownHalves, commit_many: CommitMany) -> None:
        self._sender = sender
        self._halves = halves
        self._commit_many = commit_many

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send all messages. Return in their order where each was stored, or its error."""
        halves = self._halves.send([message.message_id for message in messages])
        if not halves:
            return self._sender.send_many(messages)
        results: dict[int, SendResult | Exception] = {}
        failed: set[tuple[str, str]] = set()
        for run in _runs(messages, halves.keys()):
            going = []
            for at, message in run:
                if _lane(message) in failed:
                    results[at] = NotSent("an earlier message of its key was not sent")
                    self._end_half(message, halves)
                else:
                    going.append((at, message))
            answers = self._send([message for _, message in going], halves)
            for (at, message), answer in zip(going, answers, strict=True):
                results[at] = answer
                if message.ordering_key and isinstance(answer, Exception):
                    failed.add(_lane(message))
        return [results[at] for at in range(len(messages))]

    def _send(
        self, messages: Sequence[Message], halves: dict[str, Half]
    ) -> list[SendResult | Exception]:
        if not messages:
            return []
        if messages[0].message_id not in halves:
            return self._sender.send_many(messages)
        try:
            answers = self._commit_many([halves[message.message_id] for message in messages])
        except Exception as error:  # noqa: BLE001 - as in the relay: none is acknowledged
            answers = [error] * len(messages)
        for message, answer in zip(messages, answers, strict=True):
            acknowledged = not isinstance(answer, Exception)
            self._halves.note_ended(message.message_id, acknowledged=acknowledged)
        return answers

    def _end_half(self, message: Message, halves: dict[str, Half]) -> None:
        if message.message_id in halves:
            self._halves.note_ended(message.message_id, acknowledged=False)


def _runs(messages: Sequence[Message], halves: Collection[str]) -> Iterable[list[Item]]:
    """Yield runs of messages that go the same way. Messages without a key may go first."""
    items = list(enumerate(messages))

    def is_half(item: Item) -> bool:
        return item[1].message_id in halves

    free = sorted((item for item in items if not item[1].ordering_key), key=is_half)
    keyed = [item for item in items if item[1].ordering_key]
    for row in (free, keyed):
        for _, run in itertools.groupby(row, is_half):
            yield list(run)


def _lane(message: Message) -> tuple[str, str]:
    return message.topic, message.ordering_key
