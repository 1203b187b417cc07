"""The notices to the members of a consumer group that it has changed.

A small group is told at once. The members of a large one are told some at a time, once for all
changes since the last time. Otherwise a thousand members that join one after another would cause
half a million notices.
"""

from collections.abc import Callable, Collection

from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import encode_command, request

_SMALL = 16  # members that are told at once
_IN_TICK = 100  # notices of a tick; each takes about 10 us


class MemberNotices:
    """Tells members of groups that have changed.

    Args:
        members_of: returns the connections of those members of a group who want to be told.
        send: sends a frame to a connection.
    """

    def __init__(
        self, members_of: Callable[[str], Collection[int]], send: Callable[[int, bytes], None]
    ) -> None:
        self._members_of = members_of
        self._send = send
        self._due: dict[str, None] = {}  # large groups that changed and are not told yet
        self._untold: list[int] = []  # members of the group that is being told
        self._frame = b""

    def note(self, group: str) -> None:
        """Note that a group has changed. A small one is told at once."""
        members = self._members_of(group)
        if len(members) > _SMALL:
            self._due[group] = None
            return
        self._due.pop(group, None)
        if members:
            frame = _notice(group)
            for connection in members:
                self._send(connection, frame)

    def tell_some(self) -> None:
        """Send some of the notices that are due."""
        room = _IN_TICK
        while room and (self._untold or self._due):
            if self._untold:
                self._send(self._untold.pop(), self._frame)
                room -= 1
            else:
                group = next(iter(self._due))
                del self._due[group]
                self._untold, self._frame = list(self._members_of(group)), _notice(group)


def _notice(group: str) -> bytes:
    ext = {"consumerGroup": group}
    return encode_command(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext, oneway=True))
