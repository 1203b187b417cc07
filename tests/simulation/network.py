"""Links between clients and the broker's machine, and what goes wrong on them.

TCP keeps order and loses nothing while a connection lives; a network of proxies and clients that
resend does not. So frames may be late, lost, cut in pieces, doubled (the copy is a request of its
own) or overtake one another, as the seed's plan says.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
from tests.simulation.world import World

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.requests import known_sends
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.runtime.connection_roles import Decode
from reliable_mq.wire import frame as frame_reading
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, decode_command, encode_command
from reliable_mq.wire.frame import Frame, FrameReader
from reliable_mq.wire.known_send import KnownSends
from reliable_mq.wire.properties import TRANSACTION_PREPARED
from reliable_mq.wire.record import pack_host

_COPY = 1 << 30  # the opaque of a doubled request: nobody waits for it


class Peer(Protocol):
    """The client's end of a link. `is_broker`: it is a slave's, which nobody judges."""

    is_broker: bool

    def came(self, link: "Link", command: Command) -> None:
        """Take a command that the broker sent."""

    def lost(self, link: "Link") -> None:
        """Note that the link is gone."""


class Host(Protocol):
    """The broker's end of all links."""

    def came(self, link: "Link", data: bytes) -> None:
        """Take bytes that a client sent."""

    def lost(self, link: "Link") -> None:
        """Note that a link is gone."""


class Link:
    """One connection, seen from both ends."""

    def __init__(self, number: int, peer: Peer) -> None:
        self.peer = peer
        self.connection = PeerConnection(
            number, pack_host("10.0.0.1", number), f"10.0.0.1:{number}"
        )
        self.is_open = True
        self._reader: FrameReader[Command] | None = None  # the broker's
        self._decode: Decode
        self.peer_reader = FrameReader()
        self.arrival_ms = [0.0, 0.0]  # of the last frame to the broker, and to the client

    def read(self, core: BrokerCore, data: bytes) -> Iterator[tuple[list[Command], Command]]:
        """Yield what the broker receives: each request with all its fields, and as it is given."""
        # Sends come one by one. Those of half of the links are read and stored as columns, too.
        known_sends.FEW = frame_reading.ALIKE_MIN = 1 if self.connection.id % 2 else 4
        if self._reader is None:
            known, self._decode = core.decoder(self.connection.host)
            self._reader = FrameReader(sys.maxsize, known)
        for each in self._reader.feed(data):
            if isinstance(each, Frame):
                yield [decode_command(each)], self._decode(each)
            else:
                frames = each.frames() if isinstance(each, KnownSends) else ()
                yield list(map(decode_command, frames)), each


def _is_half(command: Command) -> bool:
    return any(TRANSACTION_PREPARED in value for value in command.ext_fields.values())


class Network:
    """Carries frames, late or never."""

    def __init__(self, world: World, host: Host) -> None:
        self._world = world
        self._host = host
        self._numbers = itertools.count(1)
        self._copies = itertools.count(_COPY)
        self.links: dict[int, Link] = {}

    def connect(self, peer: Peer) -> Link:
        """Return a new link to the broker's machine."""
        link = Link(next(self._numbers), peer)
        self.links[link.connection.id] = link
        self._world.note("connect", link.connection.id)
        return link

    def send(self, link: Link, command: Command) -> None:
        """Carry a request to the broker.

        Halves are not doubled where they are checked: nothing would tell their copies apart. Nor is
        another time for a popped message: a client uses the last handle that it is told.
        """
        plan = self._world.plan
        checks_halves = plan.half_check_ms or plan.set_clock_every_ms  # that begins a round, too
        may_double = not (checks_halves and _is_half(command))
        may_double &= command.code != RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        self._carry(link, encode_command(command), 0)
        if not self._world.is_calm and self._world.chance(plan.duplicate) and may_double:
            copy = msgspec.structs.replace(command, opaque=next(self._copies))
            self._carry(link, encode_command(copy), 0)

    def for_clients(self, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Return the replies that are not for another broker."""
        brokers = {number for number, link in self.links.items() if link.peer.is_broker}
        return [each for each in replies if each[0] not in brokers]

    def answer(self, replies: list[tuple[int, bytes]]) -> None:
        """Carry what the broker sent, link by link; a connection that is gone gets nothing."""
        by_connection: dict[int, list[bytes]] = {}
        for connection, frame in replies:
            by_connection.setdefault(connection, []).append(frame)
        for connection, frames in by_connection.items():
            link = self.links.get(connection)
            if link is not None:
                for frame in frames:
                    self._carry(link, frame, 1)

    def _carry(self, link: Link, frame: bytes, way: int) -> None:
        world = self._world
        plan = world.plan
        is_tcp = link.peer.is_broker  # between brokers nothing resends
        if not (world.is_calm or is_tcp) and world.chance(plan.drop):
            world.note("drop", "reply" if way else "request", "of", link.connection.id)
            return
        arrive = self._arrive_at_client if way else self._arrive_at_broker
        if plan.keeps_order and world.chance(plan.split) and len(frame) > 1:
            cut = world.random.randrange(1, len(frame))
            self._deliver(link, frame[:cut], way, arrive)
            self._deliver(link, frame[cut:], way, arrive)
        else:
            self._deliver(link, frame, way, arrive)

    def _deliver(
        self, link: Link, data: bytes, way: int, arrive: Callable[[Link, bytes], None]
    ) -> None:
        world = self._world
        at = world.time_ms + world.around(world.plan.latency_ms)
        if world.plan.keeps_order:
            at = link.arrival_ms[way] = max(at, link.arrival_ms[way])
        world.later(at - world.time_ms, lambda: arrive(link, data))

    def _arrive_at_broker(self, link: Link, data: bytes) -> None:
        if link.is_open:
            self._host.came(link, data)

    def _arrive_at_client(self, link: Link, data: bytes) -> None:
        if link.is_open:
            for frame in link.peer_reader.feed(data):
                link.peer.came(link, decode_command(frame))

    def cut(self, link: Link) -> None:
        """End a link; both ends learn of it at once."""
        if link.is_open:
            self._world.note("disconnect", link.connection.id)
            link.is_open = False
            del self.links[link.connection.id]
            self._host.lost(link)
            link.peer.lost(link)

    def cut_all(self) -> None:
        """End every link: the broker's machine is gone."""
        for link in list(self.links.values()):
            self.cut(link)
