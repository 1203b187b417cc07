"""Any bytes at the place of a TLS client's: nobody gets what the client did not send."""

import asyncio
import itertools
import ssl
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.tls_world import HOST, Certificates
from tests.waiting import eventually

from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_connection import TlsGate


class Noted(asyncio.Protocol):
    """What speaks behind the gate: it notes what it was given."""

    def __init__(self) -> None:
        self.got = b""
        self.is_secured = False

    def secured(self, transport: asyncio.Transport) -> None:
        self.is_secured = True

    def data_received(self, data: bytes) -> None:
        self.got += data


class Pipe(asyncio.Transport):
    """The socket of a server: it keeps what is written, and the protocol that reads."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol
        self.written = b""
        self.is_closed = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServerTls, ssl.SSLContext]:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    return ServerTls(made.settings()), made.client()


async def steps_done(server: ServerTls) -> None:
    """Wait until no step of a handshake is due; they rest between two turns."""
    if server._is_turn_due:
        await eventually(lambda: not server._is_turn_due)


def speak(
    tls: tuple[ServerTls, ssl.SSLContext], plain: bytes, cuts: list[int], change: tuple[int, int]
) -> tuple[Noted, int]:
    """Let a client send `plain`; return what came, and how many bytes the client wrote in all.

    `cuts`: where its bytes are split. `change`: the place of a byte, and what it is XORed with.
    """

    async def scene() -> tuple[Noted, int]:
        server, context = tls
        inner, pipe = Noted(), Pipe()
        gate = TlsGate(inner, server)
        pipe.protocol = gate
        gate.connection_made(pipe)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
        at = 0
        is_done = has_sent = False
        for _ in range(8):
            try:
                if not is_done:
                    client.do_handshake()
                    is_done = True
                if not has_sent:
                    client.write(plain)
                    has_sent = True
                client.read(1)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                break  # the server has refused what was changed
            data = bytearray(outgoing.read())
            place = change[0] - at
            if 0 <= place < len(data):
                data[place] ^= change[1]
            for piece in _split(bytes(data), [cut - at for cut in cuts]):
                if not pipe.is_closed:
                    pipe.protocol.data_received(piece)
                    await steps_done(server)
            at += len(data)
            incoming.write(pipe.written)
            pipe.written = b""
        pipe.close()
        pipe.protocol.connection_lost(None)
        return inner, at

    return asyncio.run(scene())


def _split(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(cut for cut in cuts if 0 < cut < len(data))})
    for begin, end in itertools.pairwise(places):
        yield data[begin:end]


BODIES = st.binary(min_size=1, max_size=40_000)
CUTS = st.lists(st.integers(1, 42_000), max_size=12)
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUICK
@given(plain=BODIES, cuts=CUTS)
def test_any_split_of_the_bytes_gives_what_was_sent(
    tls: tuple[ServerTls, ssl.SSLContext], plain: bytes, cuts: list[int]
) -> None:
    inner, _ = speak(tls, plain, cuts, (-1, 0))
    assert inner.got == plain


@QUICK
@given(plain=BODIES, cuts=CUTS, place=st.integers(0, 42_000), bits=st.integers(1, 255))
def test_after_a_changed_byte_only_what_came_before_it_was_given(
    tls: tuple[ServerTls, ssl.SSLContext], plain: bytes, cuts: list[int], place: int, bits: int
) -> None:
    """Versions in the heads of records are protected by no key, and may change unnoticed."""
    inner, size = speak(tls, plain, cuts, (place, bits))
    assert plain.startswith(inner.got)
    assert inner.got == plain or place < size


@QUICK
@given(garbage=st.binary(min_size=1, max_size=2_000))
def test_garbage_is_given_to_nobody(tls: tuple[ServerTls, ssl.SSLContext], garbage: bytes) -> None:
    async def scene() -> None:
        inner, pipe = Noted(), Pipe()
        gate = TlsGate(inner, tls[0])
        pipe.protocol = gate
        gate.connection_made(pipe)
        for piece in (garbage[:1], garbage[1:]):
            if piece and not pipe.is_closed:
                pipe.protocol.data_received(piece)
                await steps_done(tls[0])
        pipe.protocol.connection_lost(None)
        assert inner.got == b""
        assert not inner.is_secured

    asyncio.run(scene())
