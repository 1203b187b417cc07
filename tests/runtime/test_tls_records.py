"""An encrypted peer that sends very many short records: others have their turns in between."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.runtime import test_tls_bytes
from tests.runtime.test_tls_bytes import steps_done
from tests.runtime.tls_world import HOST, Certificates

from reliable_mq.runtime import tls_connection
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.tls_connection import RECORDS_AT_ONCE, TlsConnection, TlsGate


class Noted(test_tls_bytes.Noted):
    """What speaks on the connection: it notes what came in each go."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.sizes.append(len(data))


class Pipe(test_tls_bytes.Pipe):
    """The socket of a server, and whether it is read."""

    is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


class Peer:
    """A client that has done its handshake with a server."""

    def __init__(self, folder: Path) -> None:
        made = Certificates(folder)
        self.server, context = ServerTls(made.settings()), made.client()
        self.inner, self.pipe = Noted(), Pipe()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._client = context.wrap_bio(self._incoming, self._outgoing, server_hostname=HOST)

    @property
    def connection(self) -> TlsConnection:
        protocol = self.pipe.protocol
        assert isinstance(protocol, TlsConnection)
        return protocol

    async def shake_hands(self) -> None:
        gate = self.pipe.protocol = TlsGate(self.inner, self.server)
        gate.connection_made(self.pipe)
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                self._client.do_handshake()
            data = self._outgoing.read()
            if data:
                self.pipe.protocol.data_received(data)
            await steps_done(self.server)
            self._incoming.write(self.pipe.written)
            self.pipe.written = b""
        assert self.inner.is_secured

    def records(self, count: int) -> bytes:
        """Return records of a byte each."""
        for _ in range(count):
            self._client.write(b"x")
        return self._outgoing.read()


def play(folder: Path, scene: Callable[[Peer], Awaitable[None]]) -> None:
    async def run() -> None:
        peer = Peer(folder)
        await peer.shake_hands()
        await scene(peer)
        peer.pipe.close()
        peer.connection.connection_lost(None)
        assert peer.server.behind_size == 0

    asyncio.run(run())


async def read(peer: Peer) -> None:
    """Let the loop have turns until the peer is read again."""
    for _ in range(100):
        if peer.pipe.is_read:
            return
        await asyncio.sleep(0)
    pytest.fail("the peer is not read any more")


@pytest.mark.parametrize("count", [RECORDS_AT_ONCE - 1, 8_000])
def test_many_records_of_one_read_are_decrypted_in_many_turns(tmp_path: Path, count: int) -> None:
    async def scene(peer: Peer) -> None:
        data = peer.records(count)
        peer.connection.data_received(data)
        assert peer.inner.sizes == [min(count, RECORDS_AT_ONCE)]
        assert peer.pipe.is_read is (count < RECORDS_AT_ONCE)
        assert peer.server.behind_size <= len(data)
        await read(peer)
        assert sum(peer.inner.sizes) == count
        assert max(peer.inner.sizes) <= RECORDS_AT_ONCE
        assert peer.server.behind_size == 0
        peer.connection.data_received(peer.records(3))
        assert peer.inner.sizes[-1] == 3

    play(tmp_path, scene)


def test_records_that_have_come_wait_while_the_protocol_wants_nothing(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        peer.connection.data_received(peer.records(8_000))
        peer.connection.pause_reading()
        for _ in range(10):
            await asyncio.sleep(0)
        assert sum(peer.inner.sizes) == RECORDS_AT_ONCE
        peer.connection.resume_reading()
        assert not peer.pipe.is_read
        await read(peer)
        assert sum(peer.inner.sizes) == 8_000

    play(tmp_path, scene)


def test_a_protocol_that_pauses_and_goes_on_gets_no_more_in_a_turn(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        peer.connection.data_received(peer.records(8_000))
        while not peer.pipe.is_read:
            seen = len(peer.inner.sizes)
            for _ in range(3):
                peer.connection.pause_reading()
                peer.connection.resume_reading()
            await asyncio.sleep(0)
            assert len(peer.inner.sizes) <= seen + 1
        assert sum(peer.inner.sizes) == 8_000

    play(tmp_path, scene)


def test_the_cipher_holds_a_piece_of_what_waits(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        peer.connection.data_received(peer.records(11_000))
        while not peer.pipe.is_read:
            assert peer.connection._incoming.pending <= 64 * 1024
            await asyncio.sleep(0)
        assert sum(peer.inner.sizes) == 11_000

    play(tmp_path, scene)


def test_a_connection_that_closes_while_records_wait_is_given_no_more(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        peer.connection.data_received(peer.records(8_000))
        peer.pipe.close()
        for _ in range(10):
            await asyncio.sleep(0)
        assert sum(peer.inner.sizes) == RECORDS_AT_ONCE

    play(tmp_path, scene)


def test_what_waits_of_all_connections_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connection, "BEHIND_SIZE_MAX", 0)

    async def scene(peer: Peer) -> None:
        peer.connection.data_received(peer.records(8_000))
        assert sum(peer.inner.sizes) == 8_000
        assert peer.server.behind_size == 0
        await read(peer)

    play(tmp_path, scene)
