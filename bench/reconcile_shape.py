"""What the ledgers for the measurements of reconciliation hold: everything follows from a number.

So the tables and the broker's log agree without being compared, and a further day is the same data
with more messages. A cycle of 400 messages repeats: three topics of eight queues, bodies of several
sizes, one message delivered twice, one consumed at its second attempt. Of 10,000 messages one has a
fault, in three kinds.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reliable_mq.limits import COMMIT_LOG_SEGMENT_SIZE

GROUPS = ("loyalty", "payments")
BROKER = "broker-a"
CYCLE = 400
TOPICS = (("orders", "paid", 200), ("payments", "booked", 120), ("stock-movements", "", 80))
QUEUES = 8
BODY_SIZES = (0.8, 1.0, 1.2, 0.9, 1.1)  # of the size asked for
TWICE_SLOT, RETRIED_SLOT, FAULTY_SLOT = 37, 101, 321
FAULT_EVERY = 25  # cycles: one message of 10,000
FAULTS = ("unconfirmed", "one group's log missing", "not consumed by one group")
NUMBER_DIGITS = 12
BODY_HEAD = '{"order": "'  # the number follows
Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


class Slot(NamedTuple):
    """What all messages at one place of the cycle have in common."""

    topic: str
    tag: str
    queue_id: int
    rank: int  # how many records of its queue come before it in a cycle
    body_rest: str  # behind the number


@dataclass(frozen=True)
class Data:
    """Which ledgers: message number n is of `begin_ms` + n * `step_us` / 1,000."""

    messages: int
    body_size: int
    begin_ms: int
    step_us: int
    segment_size: int = COMMIT_LOG_SEGMENT_SIZE

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """The 400 places of the cycle, the topics mixed as they would be."""
        order = sorted(
            ((at + 0.5) / share, topic, tag) for topic, tag, share in TOPICS for at in range(share)
        )
        taken: dict[tuple[str, int], int] = {}
        slots = []
        for number, (_, topic, tag) in enumerate(order):
            seen = sum(count for (name, _), count in taken.items() if name == topic)
            queue = (topic, seen % QUEUES)
            size = int(self.body_size * BODY_SIZES[number % len(BODY_SIZES)])
            slots.append(Slot(topic, tag, queue[1], taken.get(queue, 0), _body_rest(size)))
            taken[queue] = taken.get(queue, 0) + 1
        return tuple(slots)

    def per_cycle(self, topic: str, queue_id: int) -> int:
        """Return how many records a cycle adds to a queue."""
        queues = [(slot.topic, slot.queue_id) for slot in self.slots]
        return (*queues, queues[TWICE_SLOT]).count((topic, queue_id))

    def times_ms(self, numbers: Numbers) -> Numbers:
        return self.begin_ms + numbers * self.step_us // 1000

    def expected(self, first: int = 0) -> dict[str, int]:
        """How many rows of each verdict a reconciliation has to find.

        Args:
            first: of the messages before it only those with a fault count, as in an increment.
        """
        before, faults = self._faults(0, first), self._faults(first, self.messages)
        unconfirmed, without_log, not_consumed = (
            old + new for old, new in zip(before, faults, strict=True)
        )
        untouched = self.messages - first - sum(faults)
        counts = {
            "settled": len(GROUPS) * untouched + without_log + not_consumed,
            "consumed, not confirmed": unconfirmed * len(GROUPS),
            "confirmed without a log": without_log,
            "not consumed": not_consumed,
        }
        return {verdict: count for verdict, count in counts.items() if count}

    @staticmethod
    def _faults(first: int, last: int) -> list[int]:
        """Return how many messages of a range of whole cycles have each fault."""
        faults = [0] * len(FAULTS)
        for cycle in range(first // CYCLE, last // CYCLE):
            if cycle % FAULT_EVERY == 0:
                faults[cycle // FAULT_EVERY % len(FAULTS)] += 1
        return faults


def _body_rest(size: int) -> str:
    """Return what follows the number in a body of about `size` bytes."""
    text = '", "customer": "Zoë Müller", "amount": "12.50", "note": "'
    words = "please leave it with the neighbour on the left; "
    room = max(size - len(BODY_HEAD) - NUMBER_DIGITS - len(text.encode()) - 2, 0)
    return text + (words * (room // len(words) + 1))[:room] + '"}'


def message_ids(data: Data, numbers: Numbers) -> Bytes:
    """Return the ids as rows of 32 characters: UUIDv7, its random part from MD5 of the number."""
    digests = "".join(hashlib.md5(b"%d" % n).hexdigest() for n in numbers.tolist()).upper()
    random = np.frombuffer(digests.encode(), np.uint8).reshape(-1, 32)
    times = data.times_ms(numbers)
    ids = np.empty((len(numbers), 32), np.uint8)
    for digit in range(12):
        ids[:, digit] = _HEX[times >> 4 * (11 - digit) & 15]
    ids[:, 12], ids[:, 16] = ord("7"), ord("8")
    ids[:, 13:16], ids[:, 17:] = random[:, :3], random[:, 3:18]
    return ids
