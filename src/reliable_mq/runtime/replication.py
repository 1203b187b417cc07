"""The replication of one broker: as a master with slaves, as a slave, or neither.

It receives the settings, the core, and how far the log is stored. It runs the connections between
masters and slaves, and takes over the tables of the master. What consumers have committed at a
slave is told to its master.
"""

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.groups import PATH as GROUPS_PATH
from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.broker_core.request_modes import PATH as MODES_PATH
from reliable_mq.broker_core.store.commit_log import LogBatch
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.log_walk import stored_after_ms
from reliable_mq.broker_core.topics import PATH as TOPICS_PATH
from reliable_mq.errors import AddressRefused
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.ha_figures import (
    MasterLog,
    SlaveLag,
    figures_of_master,
    figures_of_slave,
)
from reliable_mq.replication.ha_status import status_of_master, status_of_slave
from reliable_mq.runtime.broker_role import BrokerRole
from reliable_mq.runtime.fence import Fence, end_second
from reliable_mq.runtime.fresh_context import context_of_client
from reliable_mq.runtime.gathered_batches import GatheredBatches
from reliable_mq.runtime.ha_master import HaMaster
from reliable_mq.runtime.ha_slave import HaSlave
from reliable_mq.runtime.links import Dial, Links
from reliable_mq.runtime.listener import Listener
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.machine_memory import memory_of_machine
from reliable_mq.runtime.pre_online import PreOnline
from reliable_mq.runtime.registrar import Registrar, asking_links
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.slave_door import SlaveDoor, is_bare, slave_door
from reliable_mq.runtime.slave_store import CoreAsSlaveStore
from reliable_mq.runtime.standing_in import StandingIn
from reliable_mq.runtime.table_follower import TableFollower
from reliable_mq.runtime.tls_settings import TlsSettings, is_exposed
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.families import Sample

log = limited_log(__name__)

_TIMEOUT = 5.0
_PORTS_BELOW = 2
_HINTED = frozenset({TOPICS_PATH, GROUPS_PATH, MODES_PATH})
LogRange = Callable[[], Awaitable[tuple[int, int]]]


class Replication:
    """What one broker does for its copies.

    Args:
        send: sends replies.
        run_turn: writes what was appended.
        tls: of the port for slaves; its settings are also those of connections to the master.
        role: the role of the store.

    Attributes:
        dial: connects to the name server in this process, whatever TLS it demands of others; None:
            the name servers are elsewhere. It is set before `check`.

    Raises:
        ConfigurationError: when a file of the TLS settings cannot be used.
    """

    def __init__(
        self,
        send: Callable[[list[Answer]], None],
        run_turn: Callable[[], None],
        tls: ServerTls,
        role: BrokerRole,
    ) -> None:
        self._server_tls = tls
        self._tls = context_of_client(tls.settings)
        self.dial: Dial | None = None
        self._role = role
        self._config = BrokerConfig()
        self._run_turn = run_turn
        self._send = send
        self.report: Callable[[], None] | None = None  # to the master of a slave
        self.master: HaMaster | None = None
        self._slave: HaSlave | None = None
        self._copy: CoreAsSlaveStore | None = None  # of a slave
        self._lag = SlaveLag()
        self._links: Links | None = None
        self._fence: Fence | None = None
        self._standing: StandingIn | None = None
        self._go_on: Callable[[], None] = lambda: None  # with what waited for reports

    async def settle(
        self, disk: Disk | None, properties: Mapping[str, str], _port: int
    ) -> dict[str, str]:
        """Decide the role of this start; see `BrokerRole.settle`."""
        return self._role.settle(disk, properties)

    async def bind(self, config: BrokerConfig, host: str, listener: Listener) -> BrokerConfig:
        """Take the port for slaves, and return the settings with its number.

        A broker without slaves takes none. A master also listens two ports below its own: there
        Apache's slave asks for topics and timers (`MixAll.brokerVIPChannel`). So does a slave that
        may stand in: Apache's master asks it there for timers, and does not come back without them.

        Raises:
            AddressRefused: when the port is taken.
            ConfigurationError: when it demands certificates that it cannot see.
        """
        if config.ha_port >= 0:
            if is_bare(config, self._server_tls.settings):
                broker_events.SLAVES_NOT_ENCRYPTED.log(log)
            self.master = self._new_master(slave_door(config, self._server_tls))
            await self.master.bind(host, config.ha_port)
            config = msgspec.structs.replace(config, ha_port=self.master.port)
        if self.master is not None or (config.is_slave and config.stands_in):
            try:
                await listener.bind_also(host, max(1, config.listen_port - _PORTS_BELOW))
            except AddressRefused as error:
                broker_events.TABLES_PORT_TAKEN.log(log, reason=error)
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
            self._fence = Fence(core, self._role, self._tls, self.dial)
            await self._fence.check()
        if self._comes_back:
            core.isolate()

    async def serve(self, core: BrokerCore) -> None:
        """Let slaves follow."""
        core.state.ha_status = self.status
        self._role.begin(core)
        core.state.ha_figures = partial(self.figures, core)
        core.state.memory_size = memory_of_machine()
        if self.master is None:
            return
        core.state.is_log_exposed = self._is_exposed(self.master)
        if self._config.waits_for_slaves:
            self.master.on_report = partial(self._note_reports, core)
            self.master.is_awaited = True
        await self.master.serve(core.state.store.log)
        core.state.files.on_change = partial(_hint, self.master)
        await self._come_online(core)

    @property
    def _comes_back(self) -> bool:
        """Whether this is a master whose slaves may have stood in for it."""
        config = self._config
        return self.master is not None and config.stands_in and not config.skips_pre_online

    async def _come_online(self, core: BrokerCore) -> None:
        """Take over what the slaves have done meanwhile; then everybody is served."""
        if self.master is not None and self._comes_back:
            links = self._links = asking_links(self._config, _TIMEOUT, self._tls, self.dial)
            await PreOnline(core, self.master, links).run()
            core.go_online()

    def _is_exposed(self, master: HaMaster) -> bool:
        """Whether strangers can have the log; the broker's log tells it loudly."""
        config = self._config
        is_guarded = config.slave_networks is not None or config.ha_names
        if is_guarded or not is_exposed(master.ips, TlsSettings()):
            return False
        broker_events.LOG_EXPOSED.log(log, address=config.ha_address)
        return True

    def _note_reports(self, core: BrokerCore) -> None:
        """Send the replies that waited for what the slaves have reported."""
        if self.master is not None:
            config = self._config
            end, has_slaves = self.master.acknowledged_by(config.slaves_needed, config.ha_gap_max)
            self._send(core.replicated(end, has_slaves=has_slaves))
            self._go_on()

    def works(
        self,
        core: BrokerCore,
        writer: LogWriter,
        registrar: Registrar,
    ) -> list[Coroutine[Any, Any, None]]:
        """Return what a slave does all the time; nothing for a master."""
        if not self._config.is_slave:
            if isinstance(answers := core.state.answers, ReplicatedAnswers):
                writer.gathered = GatheredBatches(answers, partial(writer.go_on, at_once=True))
                self._go_on = writer.go_on
            watching = [] if self._fence is None else [self._fence.watch_forever()]
            return [*watching, registrar.beat_forever()] if self._config.stands_in else watching
        links = self._links = asking_links(self._config, _TIMEOUT, self._tls, self.dial)
        tables = TableFollower(core, links, registrar, self._role)
        copy = self._copy = CoreAsSlaveStore(core, writer, self._run_turn, self._role)
        slave = self._slave = self._new_slave(copy, registrar, tables.log_range)

        def report() -> None:
            copy.stored()
            slave.stored()

        self.report = report
        tables.master = copy.master = slave.master
        slave.on_hint = copy.on_unknown_topic = tables.hint
        works = [slave.follow_forever(), tables.follow_forever()]
        if self._config.stands_in:
            standing = self._standing = StandingIn(
                core, links, registrar, writer, lambda: slave.is_following, slave.wake
            )
            works += [standing.watch_forever(), standing.deliver_forever()]
            works.append(registrar.beat_forever())
        return works

    def _new_master(self, door: SlaveDoor) -> HaMaster:
        return HaMaster(door)

    def _new_slave(
        self, copy: CoreAsSlaveStore, registrar: Registrar, log_range: LogRange
    ) -> HaSlave:
        def find() -> str:
            return self._config.ha_master or registrar.master_ha

        tls = self._tls if self._config.ha_tls else None
        return HaSlave(copy, find, log_range, tls, self._config.shared_names)

    def status(self, log_end: int) -> dict[str, Any]:
        """Return what `mqadmin haStatus` prints."""
        now = time.monotonic()
        if self._slave is not None:
            return status_of_slave(self._slave.master, log_end, now)
        slaves = self.master.slaves if self.master is not None else []
        return status_of_master(slaves, log_end, self._config.ha_gap_max, now)

    def early(self, core: BrokerCore) -> Callable[[LogBatch], None] | None:
        """Return what takes each batch that is written, before its sync; None: nothing does."""
        if not self._config.copies_early:
            return None

        def written(batch: LogBatch) -> None:
            core.state.store.log.mark_written(batch.end)
            if self.report is not None:
                self.report()
            if self.master is not None:
                self.master.advance_by(batch)

        return written

    def figures(self, core: BrokerCore, now_ms: int) -> Iterator[Sample]:
        """Yield the figures for metrics; none without slaves and without a master."""
        state, config = core.state, self._config
        log_ = state.store.log
        if self._slave is not None and self._copy is not None:
            stored = self._copy.kept
            age = state.master_tables.age_seconds(now_ms, state.started_ms)
            yield from figures_of_slave(
                self._slave.master,
                self._lag,
                stored,
                age,
                now_ms,
                stands_in=state.stand_in.is_acting,
                delivered=state.stand_in.delivered,
            )
        if self.master is not None:
            times = partial(stored_after_ms, log_)
            seen = MasterLog(log_.end, config.ha_gap_max, config.slaves_needed, times)
            yield from figures_of_master(self.master.slaves, seen, time.monotonic(), now_ms)

    async def finish(self) -> None:
        """Let the slaves have the end of the log, before the store is closed."""
        if self.master is not None:
            await self.master.finish()

    async def close(self) -> None:
        """Close the connections."""
        if self.master is not None:
            await self.master.close()
        if self._standing is not None:
            await self._standing.close()
        if self._links is not None:
            await self._links.close()
        if self._fence is not None:
            await self._fence.close()


def _hint(master: HaMaster, path: str) -> None:
    """Let slaves ask for a table that has changed; what else changes can wait some seconds."""
    if path in _HINTED:
        master.hint()


Making = Callable[
    [Callable[[list[Answer]], None], Callable[[], None], ServerTls, BrokerRole], Replication
]
"""Makes the replication of a broker."""
