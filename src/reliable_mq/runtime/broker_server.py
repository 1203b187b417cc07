"""The bundled broker: sockets, a disk and the clock around the broker core.

One event loop handles commands and writes the log. It also syncs the log while the disk is fast.
All commands of a loop turn become one batch, and one write to each connection. With one or two
active clients, the commands of one read already become a batch. `log_writer` does slow work.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from operator import length_hint
from pathlib import Path

import msgspec

from reliable_mq.broker_core.config import BrokerConfig, has_access_control
from reliable_mq.broker_core.config_reading import broker_config, port_for_slaves
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.requests.handlers import SMALL_ANSWERS
from reliable_mq.broker_core.state import PeerConnection, Turn
from reliable_mq.broker_core.store.commit_log import LogBatch
from reliable_mq.broker_core.store.disk import with_folder
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.audit_file import AuditFile
from reliable_mq.runtime.broken import OnBroken, die, watched
from reliable_mq.runtime.broker_chores import BrokerChores, close_core
from reliable_mq.runtime.broker_role import BrokerRole
from reliable_mq.runtime.connection_limits import take_limits
from reliable_mq.runtime.file_disk import FileDisk
from reliable_mq.runtime.fresh_context import context_of_client
from reliable_mq.runtime.listener import Listener
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.loop_figures import LoopFigures, measure_broker
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.runtime.own_name_server import own_name_server
from reliable_mq.runtime.registrar import Registrar
from reliable_mq.runtime.replication import Making, Replication
from reliable_mq.runtime.route_follower import follow_routes_forever
from reliable_mq.runtime.server_connection import now_ms, send_all
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.syncs import syncs_of
from reliable_mq.runtime.tls_settings import TlsSettings, is_exposed
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.command import Command
from reliable_mq.wire.record import address_of

log = limited_log(__name__)

_TICK_SECONDS = 0.02
_FEW_SPEAKERS = 2
_SOME_SPEAKERS = 8  # if one sends much, others with single requests do not wait for its share


class BrokerOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of a broker.

    Without `name_servers` ("host:port;host:port"), the broker runs a name server of its own on
    `name_server_port`. With port 0, the system chooses a port. `properties`: see `broker_config`.
    `tls`: for the broker and for its own name server. Default: all connections are plain.
    """

    store: Path
    host: str = "127.0.0.1"
    port: int = 10911
    name_server_port: int = 9876
    name_servers: str = ""
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)
    tls: TlsSettings = TlsSettings()


class BrokerServer:
    """One broker. It runs a name server of its own unless the options name others.

    Args:
        options: address, store and properties.
        on_broken: takes an unexpected exception of the broker's background work. An exception
            within one client's command is answered to that client instead.
        make: makes what it does for its copies.

    Raises:
        ConfigurationError: when a file of the TLS settings cannot be used.
    """

    small_answers = SMALL_ANSWERS

    def __init__(
        self, options: BrokerOptions, on_broken: OnBroken = die, make: Making = Replication
    ) -> None:
        self._options, self._on_broken = options, on_broken
        self._loop: asyncio.AbstractEventLoop
        self._tls = ServerTls(options.tls)
        self._listener = self.listener = Listener(self, tls=self._tls)
        self._listener.pace.created = lambda: self._core.created
        self.name_server: NameServer | None = None
        self._turn_is_due, self._turn_began_ms = False, 0
        self._is_turn_plain = False  # whether the turn that is due has only plain sends
        self._speakers: set[int] = set()  # connections that sent since the last tick
        self._timers: list[asyncio.Task[None]] = []
        self.role = BrokerRole()
        self._send = partial(send_all, self._listener.connections)
        self._replication = make(self._send, self._run_turn, self._tls, self.role)
        self._registrar: Registrar
        self._core: BrokerCore
        self._disk: FileDisk | None = None
        self._audit = AuditFile(options.store)
        self._config: BrokerConfig
        self._log_writer: LogWriter
        self._chores: BrokerChores
        self._opened = AsyncExitStack()  # what a start that fails must close

    @property
    def address(self) -> str:
        """The broker's address for clients, "host:port"."""
        return address_of(self._options.host, self._listener.port)

    @property
    def name_server_address(self) -> str:
        """The address of the name servers for clients, "host:port" or several with ";"."""
        if self.name_server is None:
            return self._options.name_servers
        return address_of(self._options.host, self.name_server.port)

    async def start(self) -> None:
        """Recover the store, listen and register. On return, clients can find the broker.

        Raises:
            ConfigurationError: when an option is wrong.
            AddressRefused: when a port is taken.
            StoreError: when the store cannot be used.
        """
        try:
            await self._start()
        except BaseException as error:
            await self._listener.close()
            await self._opened.aclose()
            self.role.close()
            await self._abandon()
            if (told := with_folder(error, str(self._options.store))) is not None:
                raise told from error
            raise

    async def _start(self) -> None:
        options, self._loop = self._options, asyncio.get_running_loop()
        await self._listener.bind(options.host, options.port)
        if options.store.exists():  # a new one is made when all ports are taken
            self._disk = FileDisk(options.store)
        port = self._listener.port
        settled = await self._replication.settle(self._disk, options.properties, port)
        given = {"brokerIP1": options.host, **settled}
        if not options.name_servers:
            self.name_server = own_name_server(
                options.store, given, self._audit, self._tls, self._listener.turns
            )
            await self.name_server.start(options.host, options.name_server_port)
        places = {"namesrvAddr": self.name_server_address, "listenPort": str(port)}
        properties = {**port_for_slaves(settled, options.port), **given, **places}
        config, warnings = broker_config(properties)
        for warning in warnings:
            broker_events.BROKER_SETTING_DOUBTFUL.log(log, problem=warning)
        config = await self._replication.bind(config, options.host, self._listener)
        self._limit(config)
        disk = self._disk = self._disk or FileDisk(options.store)
        self.role.prepare(disk, config.segment_size)
        self._core = BrokerCore(config, disk, process_id=os.getpid())
        self._core.open(now_ms())
        state = self._core.state
        self.guests = state.guests
        state.processors, state.works.on_idle = os.cpu_count() or 1, self._listener.wake
        if (own := self.name_server) is not None:
            own.guard, self._replication.dial = state.guard, own.private_socket
        state.has_name_server, self.guard = own is not None, state.guard
        state.is_exposed = self._is_exposed(config)
        self._log_writer = LogWriter(
            disk,
            0 if state.is_sync_flush else config.flush_interval_ms / 1000,
            self._stored,
            syncs_of(self._on_broken, is_sync_flush=state.is_sync_flush),
            lambda has_room: state.pressure.note_room(has_room=has_room),
            self._saved,
            is_copying=config.is_slave,
            on_written=self._replication.early(self._core),
            on_broken=self._on_broken,
        )
        self._opened.callback(self._log_writer.close)
        writer, turns = self._log_writer, self._listener.turns
        self._chores = BrokerChores(self._core, writer, self._schedule_turn, turns)
        self._registrar = Registrar(
            *(state, self.name_server_address.split(";"), self._send, self._on_broken),
            tls=context_of_client(options.tls),
            dial=self._replication.dial,
        )
        self._opened.push_async_callback(self._registrar.close)
        self._tls.watch()
        await self._replication.check(self._core, self._registrar)
        await self._listener.serve(self._core.decoder)
        await self._replication.serve(self._core)
        await self._registrar.register()
        self.role.raise_fenced()
        self._timers = [
            watched(work, self._on_broken)
            for work in (
                self._tick_forever(),
                self._registrar.register_forever(),
                *self._chores.forever(),
                follow_routes_forever(self._core, self._registrar),
                *self._replication.works(self._core, self._log_writer, self._registrar),
            )
        ]

    def _limit(self, config: BrokerConfig) -> None:
        """Apply the settings that limit connections, at the start and when they change."""
        self._config = config
        limits = take_limits(msgspec.to_builtins(config, enc_hook=str))
        self._listener.limits = limits
        if self.name_server is not None:
            self.name_server.limits = limits
            self.name_server.audit_sizes = config

    def _is_exposed(self, config: BrokerConfig) -> bool:
        """Whether strangers can do everything; the log tells it loudly."""
        if has_access_control(config) or not is_exposed(self._listener.ips, self._options.tls):
            return False
        broker_events.BROKER_EXPOSED.log(log, address=self.address)
        return True

    def measure(self) -> list[LoopFigures]:
        """Note figures for metrics from now on, on the running loop; return them."""
        names = self.name_server.measure() if self.name_server else []
        return [measure_broker(self._core.state, self._listener, self._tls), *names]

    async def _abandon(self) -> None:
        """Release what the start has opened, also if it has failed."""
        self._tls.close()
        await self._listener.close()
        await self._replication.close()
        if self.name_server:
            await self.name_server.close()
        self._audit.close()
        if self._disk:
            self._disk.close()

    def received(self, connection: PeerConnection, commands: Iterable[Command]) -> bool:
        """Handle the commands of one read; return True if one takes long, and leaves the others.

        Replies and writes leave at the end of the loop turn, or at once if few clients are active.
        """
        busy = self._core.state.works.busy
        if busy and connection.id in busy:
            return True
        self._chores.is_idle = is_long = False
        is_alone = self._listener.turns.many_from is not None and length_hint(commands) == 1
        now, is_plain = now_ms(), True
        if not self._turn_is_due:
            self._turn_began_ms = now
        core, speakers = self._core, self._speakers
        speakers.add(connection.id)
        is_shared = len(speakers) > (_SOME_SPEAKERS if is_alone else _FEW_SPEAKERS)
        try:
            if isinstance(commands, tuple) and not (is_shared or self._turn_is_due):
                lone = core.place_alone(connection, commands[0], now)
                if lone is not None and self._log_writer.write_alone(lone):
                    core.stored_alone(lone, now, now_ms(), self._send)
                    if self._replication.master is not None:
                        self._replication.master.stored()
                    return False
            for command in commands:
                is_plain = core.receive(connection, command, now) and is_plain
                if busy and connection.id in busy:
                    is_long = not isinstance(commands, tuple)  # else its command would be left
                    break
        except Exception as error:  # noqa: BLE001 - on_broken handles it; the loop would drop it
            self._on_broken(error)
        if is_shared:
            self._schedule_turn(now, is_plain=is_plain)
            return is_long
        try:
            if is_plain and not self._turn_is_due:
                self._write(core.take_sends(now, now))
            else:
                self._carry_out(core.take_turn(self._turn_began_ms, now_ms(), 0))
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)
        return is_long

    def disconnected(self, connection: PeerConnection) -> None:
        """Forget a connection."""
        try:
            self._core.disconnected(connection.id)
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)
        self._schedule_turn(now_ms())

    def _schedule_turn(self, began_ms: int, *, is_plain: bool = False) -> None:
        if not self._turn_is_due:
            self._turn_is_due = self._is_turn_plain = True
            self._turn_began_ms = began_ms
            self._loop.call_soon(self._run_due_turn)
        self._is_turn_plain = is_plain and self._is_turn_plain

    def _run_due_turn(self) -> None:
        self._turn_is_due = False
        self._run_turn(self._turn_began_ms, is_plain=self._is_turn_plain)

    def _write(self, batch: LogBatch | None) -> None:
        if batch is not None:
            self._log_writer.write(batch)

    def _run_turn(self, began_ms: int = 0, *, is_plain: bool = False) -> None:
        try:
            now = now_ms()
            if is_plain:
                self._write(self._core.take_sends(began_ms, now))
                return
            began = began_ms or (self._turn_began_ms if self._turn_is_due else now)
            if self._turn_is_due or not self._core.state.works.busy:  # a turn that is due works
                self._carry_out(self._core.take_turn(began, now, 0))
                return
            before, work_us = self._core.created, 1e6 * self._listener.turns.now.works
            self._carry_out(self._core.take_turn(began, now, work_us))
            self._listener.note_created(self._core.state.works.last, before)
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)

    def _carry_out(self, turn: Turn) -> None:
        if turn.audit:  # before the first reply
            self._audit.write(turn.audit, self._core.state.config, now_ms())
        if turn.replies:
            self._send(turn.replies)
        if turn.batch or turn.files:
            self._chores.is_idle = False  # also a slave, whom nobody sends commands
            self._log_writer.write_turn(turn)
        state = self._core.state
        if turn.registered_replies or state.unregistered:
            self._registrar.register_changes(turn.registered_replies)
        waiting = state.pulls.ready or state.pops.ready or state.notifications.ready
        if waiting or state.works.busy or state.files.due or state.store.log.pending:
            self._schedule_turn(now_ms())

    def _stored(self, end: int, is_durable: bool) -> None:
        try:
            core, copies, send = self._core, self._replication, self._send
            now, report = now_ms(), copies.report
            again = core.stored(end, durable=is_durable, now_ms=now, answer=send, report=report)
            if copies.master is not None:
                copies.master.stored()
            if again:  # nothing else can become due here
                self._schedule_turn(now_ms())
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)

    def _saved(self) -> None:
        try:
            took = self._log_writer.files_seconds if self._listener.turns.is_short else 0.0
            self._core.saved(now_ms(), took, is_flood=self._listener.pace.is_on)
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)
        self._run_turn()

    async def _tick_forever(self) -> None:
        while True:
            await self._chores.rest(_TICK_SECONDS)
            self._speakers.clear()
            if self._core.state.config is not self._config:
                self._limit(self._core.state.config)
            self._core.tick(now_ms())
            self._run_turn()

    async def close(self) -> None:
        """Finish the work that has begun, save everything, and stop."""
        self._opened.pop_all()
        if self.role.is_fenced:  # nothing that waits may be acknowledged
            await self._listener.close(at_once=True)
        for task in self._timers:
            task.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)
        await self._registrar.unregister()
        self._tls.close()
        self._listener.stop_reading()
        await self._finish()
        await self._replication.finish()
        await self._listener.close()
        self._log_writer.close()
        if not self._log_writer.is_waiting_for_room:  # else the next start must recover
            close_core(self._core)
        self.role.close()
        await self._registrar.close()
        await self._abandon()

    async def _finish(self) -> None:
        """Store and answer the accepted commands, except those that wait for disk room."""
        state = self._core.state
        while True:
            state.files.end_rest()
            self._run_turn()
            await self._log_writer.drain()
            is_done = not (state.is_turn_due or state.files.is_under_way)
            if is_done or state.pressure.is_disk_full:
                return
