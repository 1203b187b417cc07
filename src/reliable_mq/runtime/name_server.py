"""A name server over sockets.

It may run beside a broker, on one loop. So a large registration is worked through in slices, and
the file of settings is written by a thread, once for all the changes that came meanwhile.
"""

import asyncio
import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from reliable_mq.broker_core.state import Connection
from reliable_mq.errors import StoreCorrupt
from reliable_mq.line_limit import limited_log
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.name_server.steps import Steps
from reliable_mq.runtime.listener import Listener, now_ms
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

log = limited_log(__name__)

_EXPIRY_SECONDS = 5.0
_SLICE_SECONDS = 0.01
_SETTINGS_CHANGES = frozenset({RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG})


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
        self._begun: dict[int, tuple[Command, Steps[Command]]] = {}  # by connection
        self._unsaved: list[tuple[int, Command, Command]] = []  # who changed settings, answers
        self._saving: asyncio.Task[None] | None = None

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
        self._core.listen_port = self.port
        await self._listener.serve()
        self._expire()

    def _expire(self) -> None:
        self._expiry = asyncio.get_running_loop().call_later(_EXPIRY_SECONDS, self._expire)
        for connection_id in self._core.routes.expire(now_ms()):
            self._listener.close_connection(connection_id)

    def received(self, connection: Connection, commands: Iterable[Command]) -> bool:
        """Answer the commands of one read; those sent one-way are done without an answer.

        Return whether one of them goes on; those behind it are left where they are.
        """
        number = connection.id
        begun = self._begun.pop(number, None)
        if begun and not self._go_on(number, *begun):
            return True
        now = now_ms()
        for command in commands:
            if command.is_reply:
                continue
            if not self._go_on(number, command, self._core.begin(number, command, now)):
                return True
        return False

    def _go_on(self, connection: int, command: Command, steps: Steps[Command]) -> bool:
        """Work on one command for a slice of time; return whether it is answered."""
        end = time.monotonic() + _SLICE_SECONDS
        try:
            while True:
                next(steps)
                if time.monotonic() > end:
                    self._begun[connection] = (command, steps)
                    return False
        except StopIteration as done:
            answer: Command = done.value
        if command.code in _SETTINGS_CHANGES and self._core.settings.is_dirty:
            self._unsaved.append((connection, command, answer))
            if self._saving is None:
                self._saving = asyncio.get_running_loop().create_task(self._save())
        else:
            self._answer(connection, command, answer)
        return True

    def _answer(self, connection: int, command: Command, answer: Command) -> None:
        if not command.is_oneway:
            self._listener.send(connection, [encode_answer(answer)])

    def _load(self) -> None:
        path = self._settings_file
        if path is None or not path.exists():
            return
        try:
            self._core.settings.load(path.read_text())
        except (ValueError, msgspec.MsgspecError) as error:
            raise StoreCorrupt(f"{path}: {error}; restore it from a copy") from error

    async def _save(self) -> None:
        """Save the settings, and then answer those who changed them; until nobody waits."""
        while self._unsaved:
            waiting, self._unsaved = self._unsaved, []
            text = self._core.settings.dump()
            fault = ""
            try:
                await asyncio.to_thread(self._write, text)
            except OSError as error:
                log.warning("the settings cannot be saved: %s", error)
                fault = f"the settings cannot be saved: {error.strerror}"
            for connection, command, answer in waiting:
                failed = reply(command, ResponseCode.SYSTEM_ERROR, fault) if fault else answer
                self._answer(connection, command, failed)
        self._saving = None

    def _write(self, text: str) -> None:
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
        self._begun.pop(connection.id, None)
        self._core.routes.disconnected(connection.id)

    async def close(self) -> None:
        """Stop."""
        if self._expiry:
            self._expiry.cancel()
        if self._saving:
            await self._saving
        await self._listener.close()
