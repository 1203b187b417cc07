"""TCP between machines, byte by byte: late, in pieces, parted for a while, torn by a death.

Connections are those of the machines' loops, so the product opens them as it does on a real loop. A
machine that dies leaves some of the bytes that it sent; the other end learns of it now or later.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.loop import WorldLoop

_HIGH = 64 * 1024  # bytes on their way, above which an end has to wait, unless it says otherwise
_LATE_MS = 2_000.0  # on average, until an end learns that the other machine is dead

Make = Callable[[], asyncio.BaseProtocol]


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, wires: "Wires", loop: "WorldLoop", number: int) -> None:
        super().__init__({"peername": ("10.0.0.2", number)})
        self._wires = wires
        self._high = _HIGH
        self._arrives_ms = 0.0  # the last piece that was sent
        self._unsent = 0  # bytes on their way
        self._came: deque[bytes] = deque()  # pieces that were not read yet; empty: no more come
        self._reads = True
        self._must_wait = False
        self.loop = loop
        self.protocol: asyncio.Protocol
        self.other: End
        self.is_over = False  # nothing goes in or out any more

    # what the product calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if self.is_over or not data:
            return
        world = self._wires.world
        pieces = [bytes(data)]
        if len(data) > 1 and world.chance(world.plan.torn):
            cut = world.random.randrange(1, len(data))
            pieces = [bytes(data[:cut]), bytes(data[cut:])]
        for piece in pieces:
            self._unsent += len(piece)
            self._send(piece)
        if self._unsent > self._high and not self._must_wait:
            self._must_wait = True
            self.loop.call_soon(self.protocol.pause_writing)

    def _send(self, piece: bytes) -> None:
        world = self._wires.world
        delay_ms = world.around(world.plan.wire_ms) + len(piece) / 1024 * world.plan.wire_kib_ms
        self._arrives_ms = max(self._arrives_ms, world.time_ms + delay_ms)
        world.later(self._arrives_ms - world.time_ms, lambda: self.other._arrive(piece))

    def close(self) -> None:
        """End the connection; what was sent still arrives."""
        if not self.is_over:
            self.is_over = True
            self._send(b"")
            self._tell_lost(None)

    abort = close

    def is_closing(self) -> bool:
        """Whether it has ended, or is about to."""
        return self.is_over

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set how many bytes may be on their way."""
        self._high = high or _HIGH

    def pause_reading(self) -> None:
        """Read no more."""
        self._reads = False

    def resume_reading(self) -> None:
        """Read again."""
        self._reads = True
        self.loop.call_soon(self.pump)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Take the protocol of the product."""
        self.protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self.protocol

    # what the world does

    def _arrive(self, piece: bytes) -> None:
        self._came.append(piece)
        self.pump()

    def pump(self) -> None:
        """Read what has come, unless the machines are parted."""
        while self._came and self._reads and not self.is_over and not self._wires.are_parted:
            piece = self._came.popleft()
            if not piece:
                self.end(None)
                return
            self.loop.guard(partial(self.protocol.data_received, piece))
            self.other._was_read(len(piece))

    def _was_read(self, size: int) -> None:
        self._unsent -= size
        if self._must_wait and self._unsent <= self._high // 4:
            self._must_wait = False
            if not self.is_over:
                self.loop.call_soon(self.protocol.resume_writing)

    def end(self, error: Exception | None) -> None:
        """Let the product know that the connection has ended."""
        if not self.is_over:
            self.is_over = True
            self._tell_lost(error)

    def _tell_lost(self, error: Exception | None) -> None:
        self._wires.forget(self)
        self.loop.call_soon(self.protocol.connection_lost, error)

    def tear(self) -> None:
        """Die with the machine, some of what was sent may still arrive."""
        self.is_over = True
        self._wires.forget(self)
        other, world = self.other, self._wires.world
        if world.random.random() < 0.5:
            other.end(ConnectionResetError("the other machine is gone"))
            return
        error = TimeoutError("the other machine does not answer")
        world.later(world.around(_LATE_MS), lambda: other.end(error))


class Wires:
    """All connections to the one port at which a machine listens for others."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server: tuple[WorldLoop, Make] | None = None  # what listens
        self.are_parted = False
        self._ends: dict[End, None] = {}
        self._count = 0

    def listen(self, loop: "WorldLoop", make: Make) -> None:
        """Take the connections that others open."""
        self.server = (loop, make)

    def close(self, loop: "WorldLoop") -> None:
        """Take no more."""
        if self.server is not None and self.server[0] is loop:
            self.server = None

    async def connect(
        self, loop: "WorldLoop", make: Make
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection.

        Raises:
            ConnectionRefusedError: when nobody listens. While the machines are parted, nothing is
                known, and whoever waits has a time-out of its own.
        """
        done: asyncio.Future[End] = loop.create_future()

        def knock() -> None:
            if not self.are_parted and not done.done():
                loop.guard(lambda: self._open(loop, make, done))

        self.world.later(self.world.around(self.world.plan.wire_ms), knock)
        end = await done
        return end, end.protocol

    def _open(self, loop: "WorldLoop", make: Make, done: "asyncio.Future[End]") -> None:
        if self.server is None:
            done.set_exception(ConnectionRefusedError("nobody listens there"))
            return
        self._count += 1
        far_loop, far_make = self.server
        near, far = (End(self, each, self._count) for each in (loop, far_loop))
        near.other, far.other = far, near
        for end, maker in ((near, make), (far, far_make)):
            self._ends[end] = None
            end.set_protocol(maker())
        far_loop.guard(lambda: far.protocol.connection_made(far))
        near.protocol.connection_made(near)
        done.set_result(near)

    def forget(self, end: End) -> None:
        """Note that an end is over."""
        self._ends.pop(end, None)

    def part(self, *, are_parted: bool) -> None:
        """Part the machines, or let all that is on its way arrive."""
        self.are_parted = are_parted
        for end in list(self._ends):
            end.pump()

    def tear(self, loop: "WorldLoop") -> None:
        """End the connections of a machine that has died, or stopped."""
        self.close(loop)
        for end in [end for end in self._ends if end.loop is loop]:
            end.tear()
