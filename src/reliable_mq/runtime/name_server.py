"""A name server over sockets."""

import asyncio
from collections.abc import Iterable

from reliable_mq.broker_core.state import Connection
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.runtime.listener import Listener, now_ms
from reliable_mq.wire.command import Command, encode_command

_EXPIRY_SECONDS = 5.0


class NameServer:
    """Answers routes on one port."""

    def __init__(self) -> None:
        self._core = NameServerCore()
        self._listener = Listener(self)
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        """Listen; see `Listener.bind`."""
        await self._listener.bind(host, port)
        await self._listener.serve()
        self._expire()

    def _expire(self) -> None:
        for connection_id in self._core.routes.expire(now_ms()):
            self._listener.close_connection(connection_id)
        self._expiry = asyncio.get_running_loop().call_later(_EXPIRY_SECONDS, self._expire)

    def received(self, connection: Connection, commands: Iterable[Command]) -> None:
        """Answer the commands of one read; those sent one-way are done without an answer."""
        now = now_ms()
        answers: list[bytes] = []
        for command in commands:
            if command.is_reply:
                continue
            answer = self._core.receive(connection.id, command, now)
            if not command.is_oneway:
                answers.append(encode_command(answer))
        if answers:
            self._listener.send(connection.id, answers)

    def disconnected(self, connection: Connection) -> None:
        """Forget the brokers that registered over a connection."""
        self._core.routes.disconnected(connection.id)

    async def close(self) -> None:
        """Stop."""
        if self._expiry:
            self._expiry.cancel()
        await self._listener.close()
