"""A connection to one broker on which a single thread sends without the event loop.

It receives a request's frame, and returns the reply. A send through the loop switches threads
twice: the loop wakes up to write, and the thread wakes up when the loop has read. Here the thread
waits on its own socket. It does not answer requests of the peer: a peer sends none on a connection
without heartbeats.
"""

import contextlib
import select
import socket
import threading
import time

from reliable_mq.errors import ConnectionLost, FrameError, RequestTimeout
from reliable_mq.runtime.busy_wait import BusyWait
from reliable_mq.runtime.link import Render
from reliable_mq.runtime.reply_reader import ReplyReader
from reliable_mq.wire.command import Command

_RECEIVE_SIZE = 16 * 1024


class DirectLink:
    """One open connection, for one thread and one request at a time.

    C9: only the thread that has taken the link uses the socket. A free link has nothing in flight.
    A link that is closed or has failed cannot be taken.

    Args:
        address: the peer, "host:port".
        connection: its open socket; this object owns it from now on.
        busy_wait: whether to poll for a reply before sleeping; by default never.
    """

    def __init__(
        self, address: str, connection: socket.socket, busy_wait: BusyWait | None = None
    ) -> None:
        self.address = address
        connection.setblocking(False)
        self._connection = connection
        self._busy_wait = busy_wait or BusyWait(0.0)
        self._comes = select.poll()
        self._comes.register(connection, select.POLLIN)
        self._replies = ReplyReader()
        self._gate = threading.Lock()
        self._is_closed = False
        #: whether a thread has taken the link since this was last set to False
        self.was_used = True

    @property
    def is_closed(self) -> bool:
        """Whether the link is closed or has failed."""
        return self._is_closed

    def acquire(self) -> bool:
        """Take the link if it is free and the peer has not closed it. Return it with `release`."""
        if not self._gate.acquire(blocking=False):
            return False
        if self._is_closed or self._comes.poll(0):  # only the end of the connection can arrive
            self._is_closed = True
            self.release()
            return False
        self.was_used = True
        return True

    def release(self) -> None:
        """Make the link free for other threads."""
        self._gate.release()
        if self._is_closed:
            self._end_if_free()

    def ask(self, render: Render, code: int, timeout: float) -> Command:
        """Send a request and return its reply. The caller must have taken the link.

        Raises:
            RequestTimeout: when no reply comes within `timeout` seconds.
            ConnectionLost: when the connection ends first.
            FrameError: when the request is too long; nothing was sent.
        """
        frame = render(self._replies.next_opaque())
        deadline = time.monotonic() + timeout
        try:
            self._send(frame, deadline)
            return self._reply(deadline)
        except TimeoutError as error:
            self._is_closed = True  # the reply may still arrive later
            raise RequestTimeout(
                f"{self.address} did not answer request {code} in {timeout:.3g} s"
            ) from error
        except OSError as error:
            lost = f"{self.address} closed the connection: {error}"
            why = "this client closed it" if self._is_closed else lost
            self._is_closed = True
            raise ConnectionLost(why) from error
        except FrameError as error:
            self._is_closed = True
            raise ConnectionLost(f"{self.address} sent an invalid command: {error}") from error
        except BaseException:  # an interrupt of the thread: the reply may still arrive
            self._is_closed = True
            raise

    def close(self) -> None:
        """Close the connection; a thread that waits for a reply fails. Safe from any thread."""
        self._is_closed = True
        with contextlib.suppress(OSError):  # the peer has closed it
            self._connection.shutdown(socket.SHUT_RDWR)
        self._end_if_free()

    def _end_if_free(self) -> None:
        """Close the socket if the link is free. Otherwise `release` closes it."""
        if self._gate.acquire(blocking=False):
            self._connection.close()
            self._gate.release()

    def _send(self, frame: bytes, deadline: float) -> None:
        try:
            sent = self._connection.send(frame)
        except BlockingIOError:
            sent = 0
        rest = memoryview(frame)[sent:]
        while rest:  # the peer reads slowly, or the frame is large
            goes = select.poll()
            goes.register(self._connection, select.POLLOUT)
            _wait(goes, deadline)
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._connection.send(rest) :]

    def _reply(self, deadline: float) -> Command:
        has_come = self._poll_reply()
        while True:
            if not has_come:
                _wait(self._comes, deadline)
            has_come = False
            try:
                data = self._connection.recv(_RECEIVE_SIZE)
            except BlockingIOError:
                continue
            reply = self._replies.feed(data)
            if reply is not None:
                return reply

    def _poll_reply(self) -> bool:
        """Poll for a reply while that pays off; return whether something has arrived."""
        busy_wait = self._busy_wait
        is_to_look = busy_wait.begin()
        while is_to_look:
            if self._comes.poll(0):
                busy_wait.note_answer()
                return True
            is_to_look = busy_wait.should_continue()
        return False

    def __repr__(self) -> str:
        return f"DirectLink({self.address})"


def _wait(for_what: select.poll, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0 or not for_what.poll(left * 1000):
        raise TimeoutError
