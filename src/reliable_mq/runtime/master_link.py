"""The connection of a slave to its master: what arrives, as transfers.

While the logs are compared, whoever compares asks for transfers one after another. Later all of
them go to one function, in the same step of the loop in which their bytes arrive.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, cast

from reliable_mq.replication.ha_frames import Transfer, TransferReader
from reliable_mq.replication.log_comparison import LogComparison

_LARGE = 64 * 1024  # after a read of so many bytes, other connections have their turn
_offer_processor: Callable[[], None] = getattr(os, "sched_yield", lambda: None)  # Unix

Take = Callable[[list[Transfer]], bool]
"""Takes transfers; returns whether it has room for more."""


class Frames(Protocol):
    """Takes transfers out of the bytes of one master."""

    def feed(self, data: bytes) -> list[Transfer]:
        """Return the transfers that are whole with these bytes.

        Raises:
            FrameError: when the bytes are no transfers.
        """
        ...


def _steps_of(found: Sequence[Transfer]) -> Iterator[list[Transfer]]:
    """Yield transfers in lists of 64 KiB or more; the last list may have less."""
    step: list[Transfer] = []
    size = 0
    for each in found:
        step.append(each)
        size += len(each.data)
        if size >= _LARGE:
            yield step
            step, size = [], 0
    if step:
        yield step


class MasterLink(asyncio.Protocol):
    """One connection to a master.

    Args:
        on_heard: called with the transfers of each read, perhaps none.
        frames: takes them out of the bytes; None: as Apache's master sends them by default.
    """

    def __init__(
        self, on_heard: Callable[[list[Transfer]], None], frames: Frames | None = None
    ) -> None:
        self._on_heard = on_heard
        self._frames = frames or TransferReader()
        self._found: list[Transfer] = []  # that nobody has taken yet
        self._take: Take | None = None
        self._woken = asyncio.Event()  # something was found, room is missing, or it is over
        self._is_over = False
        self._error: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.has_compared = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            found = self._frames.feed(data)
            if self._take is None:
                self._found += found
                self._wait(is_wanted=bool(found))
            elif len(data) >= _LARGE:
                self._take_many(found, self._take)
            elif found and not self._take(found):
                self._wait(is_wanted=True)
            self._on_heard(found)  # a client may wait for what was taken, nobody for this
        except Exception as error:  # noqa: BLE001 - who waits raises it
            self._end(error)

    def _take_many(self, found: Sequence[Transfer], take: Take) -> None:
        """Hand on what is a part of a copy: nobody waits for it.

        A master on the same processors has clients. So it may go on after each step, and need not
        wait until the system takes the processor away.
        """
        has_room = True
        for step in _steps_of(found):
            has_room = take(step)
            _offer_processor()
        self.transport.pause_reading()
        if has_room:
            self._loop.call_soon(self._read_on)
        else:
            self._woken.set()

    def _wait(self, *, is_wanted: bool) -> None:
        """Read no more until whoever waits has gone on."""
        if is_wanted:
            self.transport.pause_reading()
            self._woken.set()

    def _read_on(self) -> None:
        if not (self._is_over or self._woken.is_set() or self.transport.is_closing()):
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(None if isinstance(error, ConnectionResetError) else error)

    def _end(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over, self._error = True, error
        self._woken.set()

    async def transfers(self) -> list[Transfer]:
        """Return the next transfers; an empty list: none come any more.

        Raises:
            OSError: when the connection breaks.
            FrameError: when they are no transfers.
        """
        while not (self._found or self._is_over):
            self._woken.clear()
            self._read_on()
            await self._woken.wait()
        if not self._found and self._error is not None:
            raise self._error
        found, self._found = self._found, []
        return found

    async def compare(self, comparison: LogComparison) -> bool:
        """Compare until the result is known; what is behind comes with the next transfers.

        Return whether it is known: not, when the connection ends before.
        """
        while not comparison.is_done:
            found = await self.transfers()
            if not found:
                return False
            rest = [comparison.take(each) for each in found]
            self._found = [each for each in rest if each is not None] + self._found
        self.has_compared = True
        return True

    async def forward(self, take: Take, room: Callable[[], Awaitable[None]]) -> None:
        """Hand on all transfers from now on; return when the connection has ended.

        Args:
            take: receives them.
            room: returns when there is room for more.

        Raises:
            OSError: when the connection breaks.
            FrameError: when they are no transfers.
            Exception: what `take` has raised.
        """
        found, self._found = self._found, []
        if found:
            take(found)
        self._take = take
        while not self._is_over:
            self._woken.clear()
            await room()
            self._read_on()
            await self._woken.wait()
        if self._error is not None:
            raise self._error
