"""Extensions whose answer may be lost: the former handle stands for the new one until that is used.

A consumer that does not get the answer keeps the former handle. By it, it acknowledges the message
or extends it again. Without this table the message would come back after its acknowledgement, and
each repetition would make a copy. (Apache's broker has no such table.)
It is in memory only, and keeps the latest extensions.
"""

from typing import NamedTuple

from reliable_mq.wire.pop_handle import PopHandle
from reliable_mq.wire.pop_records import CheckpointKey

_KEPT_MAX = 10_000  # about 600 bytes each
_Message = tuple[CheckpointKey, int]  # of the former handle, and the queue offset


class Extended(NamedTuple):
    """The checkpoint and the handle that an extension has made."""

    key: CheckpointKey
    handle: PopHandle


class PopExtensions:
    """The latest extensions whose new handles nobody has used."""

    def __init__(self) -> None:
        self._new: dict[_Message, Extended] = {}
        self._former: dict[CheckpointKey, _Message] = {}  # by the new checkpoint

    def __len__(self) -> int:
        return len(self._new)

    def note(self, former: CheckpointKey, offset: int, extended: Extended) -> None:
        """Note that a message has a new checkpoint, in place of the one of `former`."""
        message = former, offset
        self._forget(message)
        self._new[message] = extended
        self._former[extended.key] = message
        if len(self._new) > _KEPT_MAX:
            self._forget(next(iter(self._new)))

    def used(self, key: CheckpointKey) -> None:
        """Note that a consumer has used a handle: it does not need the former one any more."""
        message = self._former.get(key)
        if message is not None:
            self._forget(message)

    def find(self, key: CheckpointKey, offset: int) -> Extended | None:
        """Return what stands for the handle of a message now; None: the handle itself."""
        return self._new.get((key, offset))

    def _forget(self, message: _Message) -> None:
        extended = self._new.pop(message, None)
        if extended is not None:
            del self._former[extended.key]
