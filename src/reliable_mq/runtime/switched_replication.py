"""The replication of a broker whose role a controller decides.

It takes the role from the controller at the start. When the controller elects another master, the
broker ends, and starts again in this process with its other role. A master keeps the set of
replicas in sync, and acknowledges a message when all of them have it.
Source: Apache RocketMQ `ReplicasManager`, `AutoSwitchHAService`.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.config import SLAVE, SYNC_MASTER
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.disk import Disk, is_out_of_room
from reliable_mq.errors import FormerMaster, StoreError
from reliable_mq.failover import epochs
from reliable_mq.failover.controlled import Controlled
from reliable_mq.failover.controller_messages import Leadership, LiveState
from reliable_mq.failover.epochs import Epoch, EpochHistory, load_epochs
from reliable_mq.failover.in_sync import Follower, InSyncReplicas
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.ha_status import SlaveState
from reliable_mq.runtime.broker_members import ASKING_FAULTS
from reliable_mq.runtime.broker_role import BrokerRole, RoleEnd
from reliable_mq.runtime.controller_member import ControllerMember
from reliable_mq.runtime.ha_master import HaMaster
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.registrar import Registrar
from reliable_mq.runtime.replication import LogRange, Replication
from reliable_mq.runtime.server_tls import ServerTls
from reliable_mq.runtime.slave_door import SlaveDoor
from reliable_mq.runtime.slave_store import CoreAsSlaveStore
from reliable_mq.runtime.switch_master import SwitchMaster
from reliable_mq.runtime.switch_slave import SwitchSlave
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

log = limited_log(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at which replicas are in sync."""
_FIND_SECONDS = 2.0  # between two questions for the master's port for slaves
_TIMEOUT = 3.0


class SwitchedReplication(Replication):
    """What one broker under a controller does for its copies. See `Replication`.

    Args:
        member: the broker at the controller.
    """

    def __init__(
        self,
        member: ControllerMember,
        send: Callable[[list[Answer]], None],
        run_turn: Callable[[], None],
        tls: ServerTls,
        role: BrokerRole,
    ) -> None:
        super().__init__(send, run_turn, tls, role)
        self._member = member
        self._leadership = Leadership(0, "", 0)
        self._disk: Disk
        self._core: BrokerCore
        self._registrar: Registrar
        self._history = EpochHistory()
        self._in_sync = InSyncReplicas(0)
        self._followers: dict[int, Follower] = {}
        self._strange: set[int] = set()  # numbers of slaves that the controller does not know
        self._look = asyncio.Event()
        self._master_ha = ""  # of a slave's master: its address for slaves

    @property
    def _is_master(self) -> bool:
        return self._leadership.master_id == self._member.own_id

    async def settle(
        self, disk: Disk | None, properties: Mapping[str, str], port: int
    ) -> dict[str, str]:
        """Join the controller, and take the role that it says. This waits for an answer."""
        if disk is None:
            raise StoreError("the folder of the store is missing")
        self._disk = disk
        leadership = self._leadership = await self._member.join(disk, port)
        role, broker_id = (SYNC_MASTER, 0) if self._is_master else (SLAVE, self._member.own_id)
        return self._role.settle_as(disk, properties, role, broker_id, leadership.epoch)

    async def check(self, core: BrokerCore, registrar: Registrar) -> None:
        """Begin the epoch of this master, before it takes messages; see `Replication`."""
        self._core, self._registrar = core, registrar
        log_ = core.state.store.log
        history = self._history = load_epochs(self._disk.read_text(epochs.PATH))
        is_changed = history.cut(log_.written)
        if self._is_master:
            begin = log_.written if history.all else log_.start
            is_changed |= self._begin_epoch(self._leadership.epoch, begin)
        if is_changed:
            self.save_history()
        await super().check(core, registrar)
        self._note_epoch(self._leadership.epoch)

    def _begin_epoch(self, epoch: int, offset: int) -> bool:
        """Note that an epoch of this master begins; return whether it is new.

        A master that started again before the controller missed it goes on in its epoch.
        """
        if self._history.last == epoch:
            return False
        self._history.forget_before(self._core.state.store.log.start)
        return self._history.begin(Epoch(epoch, offset))

    def save_history(self) -> None:
        """Write the epochs of the log durably."""
        self._disk.write_text(epochs.PATH, self._history.dump())

    def _note_epoch(self, epoch: int) -> None:
        """Let name servers see which of two registrations is the newer one."""
        state = self._core.state
        state.epoch = epoch
        state.topics.version.state_version = epoch

    async def serve(self, core: BrokerCore) -> None:
        """Let slaves follow, and tell the controller how far this broker is."""
        state, leadership = core.state, self._leadership
        state.controlled = Controlled(self._history.to_json, self._member.hint)
        if isinstance(self.master, SwitchMaster):
            own, members = self._member.own_id, leadership.in_sync
            self._in_sync = InSyncReplicas(own, members, leadership.in_sync_epoch)
            self.master.history = self._history
            self.master.confirmed = lambda: self._in_sync.confirmed
            self.master.is_known = self._is_replica
            self.master.on_stored = partial(self._note_reports, core)
        self._member.live = self._live
        await super().serve(core)
        self._note_reports(core)  # before the first message: a master alone may say SEND_OK
        self._member.on_taken = self._end_taken
        self._member.on_change = self._changed

    def _live(self) -> LiveState:
        log_ = self._core.state.store.log
        slave = self._slave
        confirmed = slave.confirmed if isinstance(slave, SwitchSlave) else self._in_sync.confirmed
        return LiveState(self._history.last, log_.written, confirmed)

    def works(
        self, core: BrokerCore, writer: LogWriter, registrar: Registrar
    ) -> list[Coroutine[Any, Any, None]]:
        """Return what this broker does all the time."""
        if self._is_master:
            return [*super().works(core, writer, registrar), self._keep_set_forever()]
        registrar.is_controlled = True
        registrar.master = self._leadership.address
        return [*super().works(core, writer, registrar), self._find_ha_forever()]

    def _new_master(self, door: SlaveDoor) -> HaMaster:
        return SwitchMaster(door)

    def _new_slave(
        self, copy: CoreAsSlaveStore, _registrar: Registrar, log_range: LogRange
    ) -> SwitchSlave:
        copy.history, copy.save_history = self._history, self.save_history
        tls = self._tls if self._config.ha_tls else None
        return SwitchSlave(
            copy,
            self._member.own_id,
            lambda: self._master_ha,
            log_range,
            tls,
            self._config.shared_names,
        )

    async def _find_ha_forever(self) -> None:
        """Ask the master where slaves find it. Apache's slaves ask the name servers only."""
        while True:
            asked = request(RequestCode.EXCHANGE_BROKER_HA_INFO)
            if self._links is not None:
                try:
                    answer = await self._links.call(self._registrar.master, asked, _TIMEOUT)
                    self._master_ha = answer.ext_fields.get("masterHaAddress", self._master_ha)
                except ASKING_FAULTS:
                    self._master_ha = ""
            await asyncio.sleep(_FIND_SECONDS if self._master_ha else _FIND_SECONDS / 10)

    def _changed(self, leadership: Leadership) -> None:
        """Take what the controller says: the same master, or another one."""
        before = self._leadership
        if leadership.epoch < before.epoch:
            return
        if leadership.master_id != before.master_id:
            self._end_role(leadership)
            return
        if leadership.epoch > before.epoch and not self._has_noted(leadership):
            return
        self._leadership = leadership
        if self._is_master:
            self._in_sync.confirm(leadership.in_sync, leadership.in_sync_epoch)
            self._look.set()
        elif self._registrar.master != leadership.address:
            self._registrar.master, self._master_ha = leadership.address, ""

    def _has_noted(self, leadership: Leadership) -> bool:
        """Note a newer epoch of the same master; return whether the disk had room for it."""
        epoch, known = leadership.epoch, self._history.all
        try:
            self._role.learn_epoch(epoch)
            if self._is_master and self._begin_epoch(epoch, self._core.state.store.log.end):
                self.save_history()
        except OSError as error:
            if not is_out_of_room(error):
                raise
            self._history.replace(known)
            broker_events.EPOCH_NOT_NOTED.log(log, epoch=epoch, error=error)
            return False
        self._note_epoch(epoch)
        if self._is_master:
            asyncio.ensure_future(self._registrar.register())  # noqa: RUF006 - it keeps its task
        return True

    def _end_role(self, leadership: Leadership) -> None:
        """End this broker; it starts again with its other role, or with another master."""
        self._member.on_change = lambda _leadership: None
        broker_events.MASTER_ELECTED.log(
            log, master=leadership.address, broker_id=leadership.master_id, epoch=leadership.epoch
        )
        if not self._is_master:
            self._role.end(RoleEnd())
            return
        self._core.fence()
        self._role.end(RoleEnd(FormerMaster(f"the master is {leadership.address} now")))

    def _end_taken(self, error: StoreError) -> None:
        self._core.fence()
        self._role.end(RoleEnd(error))

    def _note_reports(self, core: BrokerCore) -> None:
        """Send the replies that waited for what all replicas in sync have."""
        master, log_ = self.master, core.state.store.log
        if not isinstance(master, SwitchMaster):
            return
        stored = log_.durable if core.state.is_sync_flush else log_.written
        now = time.monotonic()
        self._look_at_strangers(master)
        slaves, known = master.by_number, self._followers
        self._followers = {
            number: _seen(known.get(number), slave, log_.written, now)
            for number, slave in slaves.items()
        }
        confirmed = self._in_sync.confirm_log(self._followers, stored)
        needed = self._config.slaves_needed
        best, has_slaves = stored, True
        if needed:
            best, has_slaves = master.acknowledged_by(needed, self._config.ha_gap_max)
        self._send(core.replicated(min(confirmed, best), has_slaves=has_slaves))
        self._go_on()
        if self._wanted(now) is not None:
            self._look.set()

    def _is_replica(self, number: int) -> bool:
        """Whether the controller knows a number, or has known it: it may have lost its data.

        It refuses each set with any other number.
        """
        return number in self._member.replicas or number in self._in_sync.awaited

    def _look_at_strangers(self, master: SwitchMaster) -> None:
        """Ask the controller about new numbers: they may have joined after the last look."""
        strange = {each.broker_id for each in master.slaves if not self._is_replica(each.broker_id)}
        if strange - self._strange:
            self._member.hint()
        self._strange = strange

    def _wanted(self, now: float) -> frozenset[int] | None:
        patience = self._config.replica_lag_ms_max / 1000
        return self._in_sync.wanted(self._followers, self._history.last_start, now, patience)

    async def _keep_set_forever(self) -> None:
        """Ask the controller for another set of replicas in sync when one is due."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):  # wait_for may swallow a cancellation
                    await self._look.wait()
            except TimeoutError:
                self._note_reports(self._core)
            self._look.clear()
            if (wanted := self._wanted(time.monotonic())) is not None:
                await self._ask_for(wanted)
                self._note_reports(self._core)

    async def _ask_for(self, wanted: frozenset[int]) -> None:
        in_sync = self._in_sync
        known = self._leadership._replace(in_sync_epoch=in_sync.epoch)
        in_sync.ask(wanted)
        try:
            answer = await self._member.alter(known, wanted)
        except ASKING_FAULTS as error:
            broker_events.IN_SYNC_NOT_CHANGED.log(log, wanted=sorted(wanted), reason=error)
            await asyncio.sleep(LOOK_SECONDS)
            return
        if answer is None:
            in_sync.refused()
            await asyncio.sleep(LOOK_SECONDS)
            return
        in_sync.confirm(*answer)
        broker_events.IN_SYNC_CHANGED.log(log, replicas=sorted(in_sync.members))

    def status(self, log_end: int) -> dict[str, Any]:
        """Return what `mqadmin haStatus` prints: in sync is who is in the set."""
        status = super().status(log_end)
        if self.master is None:
            return status
        slaves, members = self.master.slaves, self._in_sync.members
        in_sync = {each.address for each in slaves if each.broker_id in members}
        for row in status["haConnectionInfo"]:
            row["inSync"] = row["addr"] in in_sync
        return {**status, "inSyncSlaveNums": len(members) - 1}

    async def close(self) -> None:
        """Close the connections; heartbeats go on with what is known now."""
        member = self._member
        member.on_change, member.on_taken = lambda _leadership: None, lambda _error: None
        if member.live == self._live:
            member.live = partial(_same, self._live())
        await super().close()


def _same(state: LiveState) -> LiveState:
    return state


def _seen(known: Follower | None, slave: SlaveState, log_end: int, now: float) -> Follower:
    follower = known or Follower(caught_up=now, is_learner=slave.is_learner)
    follower.look(slave.acknowledged, log_end, now)
    return follower
