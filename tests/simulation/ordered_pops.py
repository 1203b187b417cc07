"""The promise of pops in order: a queue hands out what comes next, and only when it may.

A queue is blocked until all messages that it handed out are acknowledged, or their time is over.
Then it goes on with the first one that is not acknowledged. What a crash may have kept or not is
left open: an acknowledgement without an answer, and a pop. A pop of the same attempt takes the
place of the one before, whose handles end nothing then. While one has no answer, this is open, too.
"""

from typing import TYPE_CHECKING

import msgspec
from tests.simulation.facts import Entry, Violation

if TYPE_CHECKING:
    from tests.simulation.model import Model

_Place = tuple[str, str, int]  # group, topic, queue
_Attempt = tuple[str, str, str]  # group, topic, id
_Request = tuple[int, int]  # connection, opaque


class _Order(msgspec.Struct):
    """What is known of a queue. `open_until`: of each message in flight, when its time is over."""

    next_offset: int = 0
    popped_ms: int = 0
    attempt: str | None = None
    open_until: dict[int, int] = msgspec.field(default_factory=dict)
    maybe_acked: set[int] = msgspec.field(default_factory=set)
    acked: set[int] = msgspec.field(default_factory=set)
    is_vague: bool = False  # a power loss took messages: the next pop says where it stands
    is_doubtful: bool = False  # a pop of the same attempt, without an answer, may have its place

    def doubt(self, until_ms: int) -> None:
        """Note that another pop may have its place, whose messages may come back at a time."""
        self.is_doubtful = True
        self.open_until = {each: min(old, until_ms) for each, old in self.open_until.items()}


class OrderedPops:
    """The queues that are popped in order."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._orders: dict[_Place, _Order] = {}
        self._asked: dict[_Attempt, dict[_Request, int]] = {}  # without an answer

    def asked(self, attempt: _Attempt, request: _Request, until_ms: int) -> None:
        """Note a pop of an attempt; `until_ms`: when what it hides comes back, at the earliest."""
        for place, order in self._orders.items():
            if (*place[:2], order.attempt) == attempt:
                order.doubt(until_ms)
        self._asked.setdefault(attempt, {})[request] = until_ms

    def answered(self, attempt: _Attempt, request: _Request) -> None:
        """Note that a pop has its answer."""
        self._asked.get(attempt, {}).pop(request, None)

    def opened(self) -> None:
        """Begin another life: pops of the one before get no answer any more."""
        self._asked.clear()

    def handed_out(
        self,
        place: _Place,
        offsets: list[int],
        popped_ms: int,
        invisible_ms: int,
        attempt: str | None,
        first: int,
    ) -> None:
        """Check what a pop is told; `first`: where the queue begins."""
        order = self._orders.setdefault(place, _Order())
        is_again = attempt is not None and attempt == order.attempt
        hidden = [
            each
            for each, until in order.open_until.items()
            if popped_ms < until and each not in order.maybe_acked
        ]
        if hidden and not is_again:
            raise Violation(f"{place} hands out {offsets} while {hidden} are in flight")
        begin, end = max(order.next_offset, first), offsets[0]
        if order.is_vague:
            begin = order.next_offset = end
        skipped = [n for n in range(begin, end) if n not in order.maybe_acked]
        if skipped or end < order.next_offset:
            raise Violation(f"{place} goes on with {offsets}, {begin} comes next: {order}")
        if offsets != list(range(end, end + len(offsets))):
            raise Violation(f"{place} hands out {offsets}")
        self._orders[place] = _Order(
            next_offset=end,
            popped_ms=popped_ms,
            attempt=attempt,
            open_until=dict.fromkeys(offsets, popped_ms + invisible_ms),
        )
        for until_ms in self._asked.get((*place[:2], attempt or ""), {}).values():
            self._orders[place].doubt(until_ms)

    def asked_to_end(self, place: _Place, offset: int, popped_ms: int, now_ms: int) -> bool:
        """Note an acknowledgement; return whether it must end the message, if it is confirmed."""
        order = self._orders.setdefault(place, _Order())
        order.maybe_acked.add(offset)
        return (
            not order.is_doubtful
            and order.popped_ms == popped_ms
            and now_ms < order.open_until.get(offset, 0)
        )

    def ended(self, place: _Place, offset: int, popped_ms: int) -> None:
        """Note that an acknowledgement is confirmed."""
        order = self._orders.get(place)
        if order is None or order.popped_ms != popped_ms or order.is_doubtful:
            return
        order.acked.add(offset)
        while order.next_offset in order.acked:
            order.next_offset += 1

    def asked_to_hide(self, place: _Place, offset: int, now_ms: int, invisible_ms: int) -> None:
        """Note that a message may come back at another time: the earlier one is promised."""
        order = self._orders.get(place)
        if order is not None and offset in order.open_until:
            until_ms = min(order.open_until[offset], now_ms + invisible_ms)
            order.open_until[offset] = until_ms

    def hidden(self, place: _Place, offset: int, until_ms: int) -> None:
        """Note that another time is confirmed."""
        order = self._orders.get(place)
        if order is not None and offset in order.open_until and not order.is_doubtful:
            order.open_until[offset] = until_ms

    def forget(self, entry: Entry) -> None:
        """Note that a crash took a message: what is known from there on is void."""
        for place, order in self._orders.items():
            lost = entry.queue_offset
            is_known = order.next_offset > lost or lost in order.open_until
            if place[1:] == (entry.topic, entry.queue_id) and is_known:
                self._orders[place] = _Order(is_vague=True)
