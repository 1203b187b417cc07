"""A name server over sockets."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from reliable_mq.broker_core.state import Connection
from reliable_mq.errors import StoreCorrupt
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.runtime.listener import Listener, now_ms
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command

_EXPIRY_SECONDS = 5.0


class NameServer:
    """Answers routes on one port.

    Args:
        settings_file: keeps what tools and brokers put into the name server (`kvConfig.json`); None
            for nowhere.
    """

    def __init__(self, settings_file: Path | None = None) -> None:
        self._settings_file = settings_file
        self._core = NameServerCore()
        self._listener = Listener(self)
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.port

    async def start(self, host: str, port: int) -> None:
        """Listen; see `Listener.bind`.

        Raises:
            StoreCorrupt: when the file of settings does not read.
        """
        self._load()
        await self._listener.bind(host, port)
        await self._listener.serve()
        self._expire()

    def _expire(self) -> None:
        self._expiry = asyncio.get_running_loop().call_later(_EXPIRY_SECONDS, self._expire)
        for connection_id in self._core.routes.expire(now_ms()):
            self._listener.close_connection(connection_id)

    def received(self, connection: Connection, commands: Iterable[Command]) -> None:
        """Answer the commands of one read; those sent one-way are done without an answer."""
        now = now_ms()
        answers: list[bytes] = []
        for command in commands:
            if command.is_reply:
                continue
            answer = self._core.receive(connection.id, command, now)
            if self._core.settings.is_dirty:  # before the answer, and rare: a tool asked for it
                self._save()
            if not command.is_oneway:
                answers.append(encode_answer(answer))
        if answers:
            self._listener.send(connection.id, answers)

    def _load(self) -> None:
        path = self._settings_file
        if path is None or not path.exists():
            return
        try:
            self._core.settings.load(path.read_text())
        except (ValueError, msgspec.MsgspecError) as error:
            raise StoreCorrupt(f"{path}: {error}; restore it from a copy") from error

    def _save(self) -> None:
        text = self._core.settings.dump()
        path = self._settings_file
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        with new.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def disconnected(self, connection: Connection) -> None:
        """Forget the brokers that registered over a connection."""
        self._core.routes.disconnected(connection.id)

    async def close(self) -> None:
        """Stop."""
        if self._expiry:
            self._expiry.cancel()
        await self._listener.close()
