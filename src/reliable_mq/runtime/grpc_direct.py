"""The way from the gRPC endpoint to the broker in the same process: a connection without a socket.

To the broker it is a connection like any other: its requests are counted, checked and answered as
those of a client. Requests of one turn of the loop are handed over together, so that they share a
write to the log.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from reliable_mq.access.users import User
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.errors import ConnectionLost, FrameError, ReliableMQError
from reliable_mq.gateway.acting import ACTING
from reliable_mq.gateway.asyncio_upstream import OnAnswer
from reliable_mq.runtime.broker_server import BrokerServer
from reliable_mq.runtime.grpc_upstream import sign_for_caller
from reliable_mq.runtime.link import Waiters
from reliable_mq.wire.addresses import address_of
from reliable_mq.wire.answer import decode_done, encode_answer
from reliable_mq.wire.command import REPLY_FLAG, Command, decode_reply
from reliable_mq.wire.frame import FrameReader, bare_frame
from reliable_mq.wire.long_frame import AnyFrame
from reliable_mq.wire.record import pack_host

_OPAQUE_MASK = 0x7FFFFFFF
_HERE = "127.0.0.1"
_FEW_SPEAKERS, _SPEAKERS_SECONDS = 2, 0.02
OnRequest = Callable[[str, Command], Command | None]


class _Told:
    """Stands for a future: hands an answer on at once, where a future waits for the loop."""

    __slots__ = ("_is_done", "_on_answer")

    def __init__(self, on_answer: OnAnswer) -> None:
        self._on_answer = on_answer
        self._is_done = False

    def done(self) -> bool:
        """Whether the answer has come."""
        return self._is_done

    def set_result(self, result: Command, /) -> None:
        """Hand the answer on."""
        self._is_done = True
        self._on_answer(result)

    def set_exception(self, exception: ReliableMQError, /) -> None:
        """Hand on why there is none."""
        self._is_done = True
        self._on_answer(exception)


class DirectBroker(asyncio.Protocol):
    """The broker of this process, as something to ask.

    Args:
        server: the broker; it has started.
        on_request: takes the requests of the broker.
        own_user: returns who signs requests that are not for a user of a client; None: nobody.
        address: of the broker, as routes have it.

    Raises:
        ConnectionLost: when the broker takes no more connections.
    """

    def __init__(
        self,
        server: BrokerServer,
        on_request: OnRequest,
        own_user: Callable[[], User | None],
        address: str,
    ) -> None:
        self._server = server
        self._on_request = on_request
        self._loop = asyncio.get_running_loop()
        number = server.listener.opened(self, "")
        if number is None:
            raise ConnectionLost("the broker takes no more connections")
        self._number = number
        self._own_user = own_user
        self._address = address
        self._waiters = Waiters("the broker of this process", self._loop)
        self._reader = FrameReader()
        self._opaque = 0
        self._later: deque[tuple[str, Command]] = deque()  # with the address of its client
        self._is_due = self._is_busy = self._is_closed = False
        self._speakers: set[int] = set()  # connections of clients that told something lately
        self._counted_at = 0.0
        self._peer: tuple[str, PeerConnection] = ("", PeerConnection(number, b"", ""))

    def reaches(self, address: str) -> bool:
        """Whether the broker is the one at an address, and takes requests."""
        return address == self._address and not self._is_closed

    def tell(self, host: str, command: Command, timeout: float, on_answer: OnAnswer) -> None:
        """Take a request of a client at an address that nobody signs; `hand_over` must follow.

        The answer is handed on when it is there, also before `hand_over` returns.
        """
        command.opaque = opaque = self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        told = cast("asyncio.Future[Command]", _Told(on_answer))
        self._waiters.add(opaque, command.code, timeout, told)
        self._later.append((host, command))

    def hand_over(self, number: int) -> None:
        """Hand over what was told; see `gateway.asyncio_upstream.Teller`."""
        now = self._loop.time()
        if now - self._counted_at > _SPEAKERS_SECONDS:
            self._counted_at = now
            self._speakers.clear()
        self._speakers.add(number)
        if len(self._speakers) > _FEW_SPEAKERS:
            self._schedule()
        elif self._later and not self._is_busy:
            self._hand_over()

    def ask(self, _address: str, command: Command, timeout: float) -> Awaitable[Command]:
        """Ask the broker; see `gateway.asyncio_upstream.Ask`."""
        if self._is_closed:
            raise ConnectionLost("the broker of this process stops")
        command.opaque = opaque = self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        future = self._waiters.add(opaque, command.code, timeout)
        acting = ACTING.get()
        sign_for_caller(command, self._own_user())
        self._later.append((_HERE if acting is None else acting.host, command))
        self._schedule()
        return future

    def _schedule(self) -> None:
        if not (self._is_due or self._is_busy):
            self._is_due = True
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._is_due = False
        if self._is_closed or not self._later:
            return
        waiting, self._later = self._later, deque()
        by_host: dict[str, list[Command]] = {}
        for host, command in waiting:
            if host in by_host:
                by_host[host].append(command)
            else:
                by_host[host] = [command]
        behind: deque[tuple[str, Command]] = deque()
        for host, commands in by_host.items():
            left = iter(commands)
            if not self._is_busy and self._server.received(self._peer_at(host), left):
                self._is_busy = True
            if self._is_busy:
                behind.extend((host, each) for each in left)
        behind.extend(self._later)
        self._later = behind

    def _peer_at(self, host: str) -> PeerConnection:
        """Return this connection with the address of a client: policies may name addresses."""
        if self._peer[0] != host:
            peer = PeerConnection(self._number, pack_host(host, 0), address_of(host, 0))
            self._peer = host, peer
        return self._peer[1]

    # What the listener of the broker needs.

    @property
    def number(self) -> int:
        """The number of this connection at the broker."""
        return self._number

    @property
    def received_size(self) -> int:
        """Nothing that has not come in whole."""
        return 0

    @property
    def unsent_size(self) -> int:
        """Nothing that is unread."""
        return 0

    def secured(self, transport: asyncio.Transport) -> None:
        """Do nothing: there is no transport."""

    def send(self, frames: Sequence[AnyFrame]) -> None:
        """Take answers and requests of the broker."""
        for frame in frames:
            done = decode_done(frame)
            if done is not None:
                self._waiters.answer(done)
                continue
            bare = bare_frame(frame) if isinstance(frame, bytes) else None
            try:
                if bare is not None:
                    self._take(decode_reply(bare))
                    continue
                for each in self._reader.feed(bytes(frame)):
                    self._take(decode_reply(each))
            except FrameError:  # the broker has made it: its caller gets no answer in time
                self._reader = FrameReader()

    def _take(self, command: Command) -> None:
        if command.flag & REPLY_FLAG:
            self._waiters.answer(command)
            return
        answer = self._on_request("", command)
        if answer is not None and not command.is_oneway:
            self.answer(answer)

    def answer(self, answer: Command) -> None:
        """Answer a request of the broker."""
        if not self._is_closed:
            for each in FrameReader().feed(bytes(encode_answer(answer))):
                self._later.append((_HERE, decode_reply(each)))
            self._schedule()

    def wake(self) -> None:
        """Hand over the requests behind one that took long."""
        if self._is_busy:
            self._is_busy = False
            self._schedule()

    def handle_waiting(self) -> None:
        """Do nothing: requests are handed over by `ask`."""

    def cut_off(self, why: str) -> None:
        """Do nothing: this process is no peer to be cut off."""

    def close_if_idle(self, silent_since: float) -> None:
        """Do nothing: this process may be silent."""

    def stop_reading(self) -> None:
        """Ask no more."""
        self._is_closed = True

    def finish(self) -> None:
        """Ask no more."""
        self.stop_reading()

    @property
    def is_answering(self) -> bool:
        """False: answers do not wait here."""
        return False

    def close(self) -> None:
        """Fail what waits."""
        self._is_closed = True
        if self._number in self._server.listener.connections:
            self._waiters.fail(lambda: ConnectionLost("the broker of this process stops"))
            self._server.listener.closed(self._peer_at(_HERE))
