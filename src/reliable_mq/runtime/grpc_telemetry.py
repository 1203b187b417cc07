"""The Telemetry stream of one gRPC client: commands, both ways."""

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from reliable_mq.gateway.call_body import PREFIX_SIZE
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.http2_frames import Stream
from reliable_mq.gateway.message_types import TYPES, DecodeError

if TYPE_CHECKING:
    from reliable_mq.runtime.grpc_connection import GrpcConnection

COMMAND_SIZE_MAX = 128 * 1024
STACKS_SIZE_MAX = 2 * 1024 * 1024
"""The most bytes of a command of a client that was asked for its stacks."""
_UNREAD_MAX, _UNREAD_SIZE_MAX = 100, 8 * 1024 * 1024  # commands that the client has not read
_COMMANDS_MAX = 16
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _INTERNAL = 3, 8, 13
_COMMAND = TYPES["TelemetryCommand"]


class Telemetry:
    """The commands of one client, both ways.

    Args:
        connection: of the client.
        stream: carries the commands.
        caller: the client.
    """

    def __init__(self, connection: "GrpcConnection", stream: Stream, caller: Caller) -> None:
        self._connection = connection
        self._stream = stream
        self.caller = caller
        self.waiting = 0
        """Commands that are not done."""
        self.size_max = COMMAND_SIZE_MAX
        self.turn = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether commands reach the client."""
        return not self._stream.is_reset and self._stream.trailers is None

    def commands(self, note_taken: Callable[[int], None]) -> Iterator[Any]:
        """Remove the commands that are whole from the body, and yield them.

        A client that breaks the rules of the stream loses it.

        Args:
            note_taken: is told how many bytes were removed.
        """
        stream, end = self._stream, self._connection.end
        while len(stream.body) >= PREFIX_SIZE and self.is_open:
            if self.waiting >= _COMMANDS_MAX:
                end(stream, _RESOURCE_EXHAUSTED, f"{_COMMANDS_MAX} commands wait already")
                return
            size = int.from_bytes(stream.body[1:PREFIX_SIZE])
            if stream.body[0] or size > self.size_max:
                end(stream, _INVALID_ARGUMENT, "a command is compressed or too long")
                return
            whole = PREFIX_SIZE + size
            if len(stream.body) < whole:
                return
            data = bytes(stream.body[PREFIX_SIZE:whole])
            del stream.body[:whole]
            note_taken(whole)
            try:
                command = _COMMAND.FromString(data)
            except DecodeError:
                end(stream, _INTERNAL, "a command cannot be decoded")
                return
            yield command

    def write(self, message: Any) -> None:
        """Send a command. A client that reads nothing loses its stream."""
        if not self.is_open:
            return
        if message.HasField("print_thread_stack_trace_command"):
            self.size_max = STACKS_SIZE_MAX
        unread = self._stream.pending or ()
        if len(unread) > _UNREAD_MAX or sum(map(len, unread)) > _UNREAD_SIZE_MAX:
            self._connection.end(self._stream, _RESOURCE_EXHAUSTED, "it reads no commands")
            return
        self._connection.send_answers(self._stream, (message,))

    def close(self) -> None:
        """End the stream."""
        if self.is_open:
            self._connection.end(self._stream, 0, "")
