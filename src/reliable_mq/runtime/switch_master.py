"""The master's side of replication under a controller: the same log, in frames with epochs.

Source: Apache RocketMQ `AutoSwitchHAConnection`.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from reliable_mq.errors import FrameError
from reliable_mq.failover.epochs import Epoch, EpochHistory
from reliable_mq.failover.switch_frames import (
    Hello,
    SlaveFrames,
    Welcome,
    encode_transfer_head,
    encode_welcome,
)
from reliable_mq.replication.ha_status import SlaveState
from reliable_mq.runtime.ha_master import HaMaster, SlaveConnection
from reliable_mq.runtime.slave_door import SlaveDoor


class SwitchMaster(HaMaster):
    """Sends the log of this broker to its slaves.

    Attributes:
        history: the epochs of the log.
        confirmed: returns how far all replicas in sync have the log.
        is_known: whether the controller knows a number.
    """

    def __init__(self, door: SlaveDoor) -> None:
        super().__init__(door)
        self.history = EpochHistory()
        self.confirmed: Callable[[], int] = lambda: 0
        self.on_stored: Callable[[], None] = lambda: None
        self.is_known: Callable[[int], bool] = lambda _number: True

    @property
    def by_number(self) -> dict[int, SlaveState]:
        """The slaves that the controller knows, by number.

        Of several connections with one number the one that has reported least counts. A slave has a
        second one while it compares; and a stranger who names the number of a slave that is here
        can only delay what is acknowledged.
        """
        found: dict[int, SlaveState] = {}
        for each in self.slaves:
            if not self.is_known(each.broker_id):
                continue
            other = found.setdefault(each.broker_id, each)
            if each.acknowledged < other.acknowledged:
                found[each.broker_id] = each
        return found

    @property
    def _counted(self) -> list[SlaveState]:
        return list(self.by_number.values())

    def stored(self) -> None:
        """Note that more of the log is stored: a master alone waits for its own disk only."""
        super().stored()
        self.on_stored()

    def _accepted(self) -> asyncio.BaseProtocol:
        return self.door.gated(_SwitchConnection(self))

    def _tend(self) -> None:
        """Also tell slaves what is confirmed by now: Apache's serve no message before."""
        super()._tend()
        confirmed = self.confirmed()
        for each in self._connections:
            connection = cast("_SwitchConnection", each)
            if connection.state.next >= 0 and connection.told < confirmed:
                connection.send(b"")


class _SwitchConnection(SlaveConnection):
    """One slave at the master."""

    _asks_first = False  # the epochs of both logs were compared before

    def __init__(self, master: SwitchMaster) -> None:
        super().__init__(master)
        self._switch = master
        self._slave_frames = SlaveFrames()
        self.told = -1  # the confirmed offset that the slave knows

    def _read(self, data: bytes) -> int | None:
        newest: int | None = None
        for frame in self._slave_frames.feed(data):
            if self._transport.is_closing():
                return None
            if isinstance(frame, Hello):
                self._welcome(frame)
            elif not self.state.broker_id:
                raise FrameError("it reports before it has said who it is")
            else:
                newest = frame
        return newest

    def _welcome(self, hello: Hello) -> None:
        """Tell a slave what this master has. It may ask several times before it reports."""
        state, switch = self.state, self._switch
        if state.next >= 0:
            raise FrameError("it says who it is in the middle of a copy")
        if self._is_paused:
            self.cut_off("it says who it is again and again, and reads no answer")
            return
        state.broker_id, state.is_learner = hello.broker_id, hello.is_learner
        welcome = Welcome(switch.log.written, switch.history.all)
        self._transport.write(encode_welcome(welcome))

    def _room(self) -> int:
        return min(super()._room(), self._switch.history.room(self.state.next))

    def _head(self, size: int) -> bytes:
        history, offset = self._switch.history, self.state.next
        epoch = history.at(offset) or next(iter(history.all), Epoch(-1, 0))
        self.told = self._switch.confirmed()
        return encode_transfer_head(offset, size, epoch, self.told)
