"""The epochs of a log: under which master which part of it was written.

Each election begins an epoch at the end of the new master's log. Two logs are the same up to the
end of the newest epoch that both have from the same offset on. So a former master finds out what
its successor lacks.

An epoch without messages stays in the history. Apache's broker drops it, and labels the messages of
a later epoch with an earlier number; then two logs that differ can look the same.
Source: Apache RocketMQ `EpochFileCache`, `CheckpointFile`.
"""

import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from reliable_mq.errors import InvariantBroken, ReplicationError, StoreError
from reliable_mq.wire.java_int import I32_MAX, I64_MAX

PATH = "epochFileCheckpoint"
COUNT_MAX = 1_000
"""The most epochs that are kept: Apache's master has room for so many in a handshake."""


class Epoch(NamedTuple):
    """The log from offset `start` on was written under the master with this number."""

    number: int
    start: int


class EpochHistory:
    """The epochs of one log, oldest first.

    Invariant K11: numbers increase, and starts do not decrease.
    """

    def __init__(self, epochs: Iterable[Epoch] = ()) -> None:
        self._epochs = list(epochs)

    def invariants(self) -> None:
        """K11."""
        for first, second in pairwise(self._epochs):
            if first.number >= second.number or first.start > second.start:
                raise InvariantBroken(f"K11: epoch {first} is before {second}")

    @property
    def all(self) -> tuple[Epoch, ...]:
        """All epochs, oldest first."""
        return tuple(self._epochs)

    @property
    def last(self) -> int:
        """The newest epoch's number; -1: there is none."""
        return self._epochs[-1].number if self._epochs else -1

    @property
    def last_start(self) -> int:
        """Where the newest epoch begins; 0: there is none."""
        return self._epochs[-1].start if self._epochs else 0

    def at(self, offset: int) -> Epoch | None:
        """Return the epoch of the byte at a log offset; None: it is before all that are known."""
        found = [each for each in self._epochs if each.start <= offset]
        return found[-1] if found else None

    def room(self, offset: int) -> int:
        """Return how many bytes from a log offset on are of the same epoch."""
        return next((each.start for each in self._epochs if each.start > offset), I64_MAX) - offset

    def begin(self, epoch: Epoch) -> bool:
        """Note that an epoch begins; return whether it is new.

        Raises:
            ReplicationError: when an epoch with this number begins elsewhere, or a newer one is
                known. Nothing was changed then.
        """
        number, start = epoch
        if epoch in self._epochs:
            return False
        if number <= self.last or start < self.last_start:
            raise ReplicationError(
                f"epoch {number} from log offset {start} on does not follow epoch {self.last} from "
                f"{self.last_start} on: the master has another history than this store"
            )
        self._epochs.append(epoch)
        del self._epochs[:-COUNT_MAX]
        return True

    def cut(self, offset: int) -> bool:
        """Forget the epochs that begin behind a log offset; return whether there were any."""
        kept = [each for each in self._epochs if each.start <= offset]
        is_changed = len(kept) < len(self._epochs)
        self._epochs = kept
        return is_changed

    def replace(self, epochs: Iterable[Epoch]) -> bool:
        """Take over a history; return whether it is another one."""
        taken = list(epochs)[-COUNT_MAX:]
        is_changed = taken != self._epochs
        self._epochs = taken
        return is_changed

    def forget_before(self, offset: int) -> None:
        """Forget the epochs that end before a log offset: where the log begins."""
        while len(self._epochs) > 1 and self._epochs[1].start <= offset:
            del self._epochs[0]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the epochs as `mqadmin getBrokerEpoch` reads them."""
        ends = [each.start for each in self._epochs[1:]] + [I64_MAX]
        return [
            {"endOffset": end, "epoch": each.number, "startOffset": each.start}
            for each, end in zip(self._epochs, ends, strict=True)
        ]

    def dump(self) -> str:
        """Return the content of the file, as Apache's broker writes it."""
        lines = "".join(f"{number}-{start}\n" for number, start in self._epochs)
        return f"{len(self._epochs)}\n{zlib.crc32(lines.encode()) & I32_MAX}\n{lines}"


def load_epochs(text: str) -> EpochHistory:
    """Return the epochs of a file's content; "": there are none.

    Raises:
        StoreError: when the content is damaged.
    """
    if not text:
        return EpochHistory()
    try:
        count, checksum, *lines = text.splitlines()
        body = "".join(f"{line}\n" for line in lines)
        epochs = [Epoch(*map(int, line.split("-"))) for line in lines]
        is_whole = len(epochs) == int(count) and int(checksum) in (
            0,
            zlib.crc32(body.encode()) & I32_MAX,
        )
    except (ValueError, TypeError) as error:
        raise _damaged() from error
    history = EpochHistory(epochs)
    if not is_whole or any(not 0 <= value <= I64_MAX for each in epochs for value in each):
        raise _damaged()
    try:
        history.invariants()
    except InvariantBroken as error:
        raise _damaged() from error
    return history


def _damaged() -> StoreError:
    return StoreError(
        f"{PATH} is damaged: restore it from {PATH}.bak, or give this broker an empty store, so "
        "that it copies the log anew"
    )


def agreed_offset(
    own: Sequence[Epoch], own_end: int, others: Sequence[Epoch], other_end: int
) -> int:
    """Return the log offset up to which two logs are the same, by their epochs; -1: none is known.

    Args:
        own, others: the epochs of both, oldest first.
        own_end, other_end: where both logs end.
    """
    ends = _ends(others, other_end)
    for epoch, end in reversed(_ends(own, own_end).items()):
        if epoch in ends:
            return min(end, ends[epoch])
    return -1


def _ends(epochs: Sequence[Epoch], log_end: int) -> dict[Epoch, int]:
    starts = [each.start for each in epochs[1:]] + [log_end]
    return {each: min(end, log_end) for each, end in zip(epochs, starts, strict=True)}
