"""A connection on which a thread sends by itself: replies, and every way in which it ends."""

import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from tests.waiting import until

from reliable_mq.errors import ConnectionLost, RequestTimeout
from reliable_mq.runtime.busy_wait import BusyWait
from reliable_mq.runtime.direct_link import DirectLink
from reliable_mq.wire.command import Command, decode_command, encode_command, reply, request
from reliable_mq.wire.frame import FrameReader

Answer = Callable[[Command], bytes]
CODE = 310


def asking(body: bytes, opaque: int) -> bytes:
    command = request(CODE, body=body)
    command.opaque = opaque
    return encode_command(command)


def echo(command: Command) -> bytes:
    return encode_command(reply(command, body=command.body))


class Served:
    """A direct link, and the other end of its connection."""

    def __init__(self, answer: Answer, busy_wait: BusyWait | None) -> None:
        ours, self.peer = socket.socketpair()
        self.link = DirectLink("b:1", ours, busy_wait)
        self.heard: list[Command] = []
        self._answer = answer
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        frames = FrameReader()
        while data := self.peer.recv(65536):
            for frame in frames.feed(data):
                command = decode_command(frame)
                self.heard.append(command)
                self.peer.sendall(self._answer(command))

    def ask(self, body: bytes, timeout: float = 30.0) -> bytes:
        assert self.link.acquire()
        try:
            return self.link.ask(partial(asking, body), CODE, timeout).body
        finally:
            self.link.release()


@contextmanager
def served(answer: Answer, busy_wait: BusyWait | None = None) -> Iterator[Served]:
    it = Served(answer, busy_wait)
    try:
        yield it
    finally:
        it.link.close()
        it.thread.join()
        it.peer.close()


def test_each_request_gets_its_own_reply() -> None:
    with served(echo) as it:
        assert [it.ask(b"%d" % at) for at in range(5)] == [b"%d" % at for at in range(5)]


class Seen(BusyWait):
    """A busy wait that looks for every reply until it has come, and counts them."""

    def __init__(self) -> None:
        super().__init__(1.0, lambda: 0.0)
        self.count = 0

    def begin(self) -> bool:
        return True

    def note_answer(self) -> None:
        self.count += 1


def test_a_reply_that_is_looked_for_is_the_same_in_one_piece_or_many() -> None:
    def in_pieces(command: Command) -> bytes:
        return encode_command(request(40)) + echo(command)

    seen = Seen()
    with served(in_pieces, seen) as it:
        bodies = [b"x" * size for size in (1, 40_000, 2_000_000)]
        assert [it.ask(body) for body in bodies] == bodies
    assert seen.count == len(bodies)


def test_a_reply_that_is_looked_for_in_vain_is_waited_for() -> None:
    clock = iter(range(1_000_000))
    with served(echo, BusyWait(1.0, lambda: next(clock) * 0.001)) as it:
        assert [it.ask(b"%d" % at) for at in range(20)] == [b"%d" % at for at in range(20)]


def test_what_else_the_peer_says_is_passed_over() -> None:
    def says_more(command: Command) -> bytes:
        other = reply(command, body=b"another's")
        other.opaque += 7
        return encode_command(request(40)) + encode_command(other) + echo(command)

    with served(says_more) as it:
        assert it.ask(b"mine") == b"mine"


def test_a_request_that_is_larger_than_what_the_system_buffers_is_sent_whole() -> None:
    with served(echo) as it:
        body = bytes(range(256)) * 16_384
        assert it.ask(body) == body


def test_no_reply_in_time_is_a_time_out_and_the_link_is_of_no_further_use() -> None:
    with served(lambda _: b"") as it:
        with pytest.raises(RequestTimeout, match=f"b:1 did not answer request {CODE} in 0.01 s"):
            it.ask(b"x", 0.01)
        assert not it.link.acquire()


def test_a_peer_that_reads_nothing_is_a_time_out_too() -> None:
    ours, peer = socket.socketpair()
    link = DirectLink("b:1", ours)
    assert link.acquire()
    with peer, pytest.raises(RequestTimeout):
        link.ask(partial(asking, bytes(8 * 1024 * 1024)), CODE, 0.01)
    link.release()


@pytest.mark.parametrize("busy_wait", [None, Seen()], ids=["asleep", "looking"])
def test_what_a_peer_trickles_does_not_prolong_the_time_out(busy_wait: BusyWait | None) -> None:
    ours, peer = socket.socketpair()
    link = DirectLink("b:1", ours, busy_wait)
    ended = threading.Event()

    def trickle() -> None:
        peer.sendall(struct.pack(">i", 1000))
        while not ended.wait(0.01):
            peer.sendall(b"\0")

    thread = threading.Thread(target=trickle)
    assert link.acquire()
    thread.start()
    with pytest.raises(RequestTimeout):
        link.ask(partial(asking, b"x"), CODE, 0.1)
    ended.set()
    thread.join()
    link.release()
    peer.close()


@pytest.mark.parametrize("garbage", [b"\xff" * 64, b""], ids=["garbage", "its end"])
def test_what_is_no_reply_ends_the_connection(garbage: bytes) -> None:
    ours, peer = socket.socketpair()
    link = DirectLink("b:1", ours)
    assert link.acquire()
    peer.sendall(garbage)
    peer.shutdown(socket.SHUT_WR)
    with peer, pytest.raises(ConnectionLost, match="b:1"):
        link.ask(partial(asking, b"x"), CODE, 30.0)
    link.release()
    assert ours.fileno() == -1, "the socket is let go of"


def test_a_link_that_the_peer_has_ended_is_not_taken() -> None:
    ours, peer = socket.socketpair()
    link = DirectLink("b:1", ours)
    peer.close()
    assert not link.acquire()
    assert ours.fileno() == -1


def test_a_link_is_taken_by_one_at_a_time() -> None:
    with served(echo) as it:
        assert it.link.acquire()
        assert not it.link.acquire()
        it.link.release()
        assert it.link.acquire()
        it.link.release()


def test_who_waits_is_told_when_the_link_is_closed() -> None:
    with served(lambda _: b"") as it:

        def close() -> None:
            until(lambda: it.heard)
            it.link.close()

        closing = threading.Thread(target=close)
        closing.start()
        with pytest.raises(ConnectionLost, match="this client closed it"):
            it.ask(b"x")
        closing.join()
        assert not it.link.acquire()


class Interrupted(BaseException):
    """What a signal's handler raises."""


def test_an_interrupted_wait_ends_the_link_because_its_reply_is_still_to_come() -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.get_ident()
    try:
        with served(lambda _: b"") as it:

            def kill() -> None:
                until(lambda: it.heard)
                signal.pthread_kill(main, signal.SIGUSR1)

            killing = threading.Thread(target=kill)
            killing.start()
            with pytest.raises(Interrupted):
                it.ask(b"x")
            killing.join()
            assert not it.link.acquire()
    finally:
        signal.signal(signal.SIGUSR1, before)
