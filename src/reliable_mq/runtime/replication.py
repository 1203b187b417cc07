"""The replication of one broker: as a master with slaves, as a slave, or neither.

It receives the settings, the core, and how far the log is stored. It runs the connections between
masters and slaves, and takes over the tables of the master.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.master_tables import table_requests, take_table
from reliable_mq.broker_core.store.copier import Copier
from reliable_mq.broker_core.store.truncation import begin_of_record, bytes_between
from reliable_mq.errors import FrameError, Unavailable
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.copied_log import CopiedRecord
from reliable_mq.replication.ha_status import status_of_master, status_of_slave
from reliable_mq.runtime.broker_role import BrokerRole
from reliable_mq.runtime.fence import Fence, end_second
from reliable_mq.runtime.ha_master import HaMaster
from reliable_mq.runtime.ha_slave import HaSlave
from reliable_mq.runtime.links import Links
from reliable_mq.runtime.listener import now_ms
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.registrar import Registrar, send_nothing, sign_as
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

log = limited_log(__name__)

TABLES_SECONDS = 5.0
"""Between two looks at the master's tables. Apache's slaves look each minute."""
_TIMEOUT = 5.0
_ROOM_SECONDS = 0.1
_FAULTS = (Unavailable, FrameError, ValueError, msgspec.MsgspecError)


class Replication:
    """What one broker does for its copies.

    Args:
        send: sends replies.
        tls: encrypts the connection over which tables come; None: plain.
        run_turn: writes what was appended.
        role: the role of the store.
    """

    def __init__(
        self,
        send: Callable[[list[Answer]], None],
        run_turn: Callable[[], None],
        role: BrokerRole,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._tls = tls
        self._role = role
        self._config = BrokerConfig()
        self._run_turn = run_turn
        self._send = send
        self.is_on = False  # whether `stored` has somebody to tell
        self.master: HaMaster | None = None
        self._slave: HaSlave | None = None
        self._links: Links | None = None
        self._fence: Fence | None = None

    async def bind(self, config: BrokerConfig, host: str) -> BrokerConfig:
        """Take the port for slaves, and return the settings with its number.

        A broker without slaves takes none.

        Raises:
            AddressRefused: when the port is taken.
        """
        if config.ha_port >= 0:
            self.master = HaMaster(config.slave_networks)
            await self.master.bind(host, config.ha_port)
            config = msgspec.structs.replace(config, ha_port=self.master.port)
        self.is_on = self.master is not None or config.is_slave
        self._config = config
        return config

    async def check(self, core: BrokerCore, registrar: Registrar) -> None:
        """Look for another master of this name, before anybody is served.

        Raises:
            FormerMaster: when there is one.
        """
        config = self._config
        if self.master is None and not config.is_slave and not self._role.note.epoch:
            return
        core.state.epoch = self._role.note.epoch
        registrar.on_second_master = partial(end_second, core, self._role)
        if not config.is_slave:
            self._fence = Fence(core, self._role, self._tls)
            await self._fence.check()

    async def serve(self, core: BrokerCore) -> None:
        """Let slaves follow."""
        core.state.ha_status = self.status
        self._role.begin(core)
        if self.master is None:
            return
        if self._config.slaves_needed:
            self.master.on_report = partial(self._note_reports, core)
        await self.master.serve(core.state.store.log)

    def _note_reports(self, core: BrokerCore) -> None:
        """Send the replies that waited for what the slaves have reported."""
        if self.master is not None:
            config = self._config
            end, has_slaves = self.master.acknowledged_by(config.slaves_needed, config.ha_gap_max)
            self._send(core.replicated(end, has_slaves=has_slaves))

    def works(
        self,
        core: BrokerCore,
        writer: LogWriter,
        registrar: Registrar,
    ) -> list[Coroutine[Any, Any, None]]:
        """Return what a slave does all the time; nothing for a master."""
        if not self._config.is_slave:
            return [] if self._fence is None else [self._fence.watch_forever()]
        links = self._links = Links(
            connect_timeout=_TIMEOUT,
            on_request=lambda _address, _command: None,
            greet=send_nothing,
            on_lost=lambda _address: None,
            sign=sign_as(self._config.access.inner_client),
            tells_outages=False,
            tls=self._tls,
        )
        tables = _MasterTables(core, links, registrar, self._role)
        store = _CoreAsSlaveStore(core, writer, self._run_turn, self._role)
        slave = self._slave = HaSlave(
            store, lambda: self._config.ha_master or registrar.master_ha, tables.log_range
        )
        return [slave.follow_forever(), tables.follow_forever()]

    def status(self, log_end: int) -> dict[str, Any]:
        """Return what `mqadmin haStatus` prints."""
        now = time.monotonic()
        if self._slave is not None:
            return status_of_slave(self._slave.master, log_end, now)
        slaves = self.master.slaves if self.master is not None else []
        return status_of_master(slaves, log_end, self._config.ha_gap_max, now)

    def stored(self) -> None:
        """Tell slaves or the master that more of the log is stored."""
        if self.master is not None:
            self.master.advance()
        if self._slave is not None:
            self._slave.stored()

    async def close(self) -> None:
        """Close the connections."""
        if self.master is not None:
            await self.master.close()
        if self._links is not None:
            await self._links.close()
        if self._fence is not None:
            await self._fence.close()


class _CoreAsSlaveStore:
    """The store of a broker's core, for `HaSlave`."""

    def __init__(
        self, core: BrokerCore, writer: LogWriter, run_turn: Callable[[], None], role: BrokerRole
    ) -> None:
        self._state, self._store = core.state, core.state.store
        self._role = role
        self._log = core.state.store.log
        self._copier = Copier(core.state.store)
        self._is_sync_flush = core.state.is_sync_flush
        self._writer = writer
        self._run_turn = run_turn
        self.segment_size = self._log.segment_size

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self._log.end

    @property
    def kept(self) -> int:
        """The offset up to which the log is stored as the flush type promises."""
        return self._log.durable if self._is_sync_flush else self._log.written

    @property
    def start(self) -> int:
        """Where the log begins."""
        return self._log.start

    @property
    def last_record(self) -> int:
        """Where the last record begins."""
        return self._store.last_record

    @property
    def acknowledged(self) -> int:
        """The offset up to which messages may have been acknowledged to clients."""
        return self._role.acknowledged(self._log.end)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the log."""
        return bytes_between(self._log, offset, offset + size)

    def begin_of_record(self, offset: int) -> int:
        """Return the largest begin of a record that is not behind an offset."""
        return begin_of_record(self._log, offset)

    def verified(self, *, is_same: bool) -> None:
        """Note whether the log is the same as the master's: only then it may be served."""
        self._state.is_unverified = not is_same
        self._role.verified(is_same=is_same)

    def truncate(self, offset: int) -> None:
        """Have the log cut at an offset; this ends the broker, and it starts again."""
        self._role.truncate(offset)

    def begin_at(self, offset: int) -> None:
        """Let the empty log begin at an offset."""
        self._copier.begin_at(offset)

    def copy(self, records: Sequence[CopiedRecord]) -> None:
        """Append records; they are written at the end of the turn."""
        for record in records:
            self._copier.append(*record)
        self._run_turn()

    async def room(self) -> None:
        """Return when the disk has room."""
        while self._writer.is_waiting_for_room:
            await asyncio.sleep(_ROOM_SECONDS)


class _MasterTables:
    """The tables of a slave's master."""

    def __init__(
        self, core: BrokerCore, links: Links, registrar: Registrar, role: BrokerRole
    ) -> None:
        self._core = core
        self._role = role
        self._links = links
        self._registrar = registrar

    async def log_range(self) -> tuple[int, int]:
        """Return where the master's log begins and ends.

        Raises:
            ConnectionError: when the master does not say it.
        """
        try:
            asked = request(RequestCode.GET_BROKER_RUNTIME_INFO)
            answer = await self._ask(self._registrar.master, asked)
            table = msgspec.json.decode(answer.body, type=dict[str, dict[str, str]])["table"]
            self._role.learn_epoch(int(table.get("brokerEpoch", 0)))
            begin, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
            return max(0, begin), max(0, end)  # Apache's begin: -1 without any message
        except (*_FAULTS, KeyError) as error:
            raise ConnectionError(
                f"the master does not say where its log begins and ends: {error}"
            ) from error

    async def follow_forever(self) -> None:
        """Take the tables over, again and again."""
        while True:
            address = self._registrar.master
            if address:
                try:
                    await self._take(address)
                except _FAULTS as error:
                    broker_events.MASTER_TABLES_REFUSED.log(log, master=address, error=error)
            await asyncio.sleep(TABLES_SECONDS if address else TABLES_SECONDS / 50)

    async def _take(self, address: str) -> None:
        for asked in table_requests():
            answer = await self._ask(address, asked)
            take_table(self._core.state, asked.code, answer.body, now_ms())

    async def _ask(self, address: str, asked: Command) -> Command:
        answer = await self._links.call(address, asked, _TIMEOUT)
        if answer.code != ResponseCode.SUCCESS:
            raise ValueError(f"request {int(asked.code)} is refused: {answer.remark}")
        return answer
