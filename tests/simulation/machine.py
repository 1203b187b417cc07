"""The broker's machine: the real core over a disk in memory, started, killed and started again.

Does what `runtime.broker_server.BrokerServer` does, one event at a time.
"""

import itertools
from collections.abc import Callable, Mapping

import msgspec
from tests.simulation.asked import whole
from tests.simulation.at_once import store_at_once
from tests.simulation.chores import Chores
from tests.simulation.invariants import check_invariants
from tests.simulation.loop import Guard, WorldJobs, WorldLoop, WorldSyncs, broken
from tests.simulation.model import Model
from tests.simulation.network import Link, Network
from tests.simulation.roles import Replicating, Role
from tests.simulation.settings import config_of
from tests.simulation.unjudged import Unjudged
from tests.simulation.watched_disk import WatchedDisk, without_room
from tests.simulation.world import World

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.config import SYNC_FLUSH, BrokerConfig
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.store.truncation import truncate
from reliable_mq.errors import FormerMaster
from reliable_mq.runtime.broker_role import BrokerRole, RoleEnd
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.testing.memory_disk import MachineStopped
from reliable_mq.wire.command import Command

_CHECK_EVERY = 50  # turns between two looks at all invariants


class Machine:
    """One broker over its lives."""

    def __init__(
        self, world: World, model: Model | Unjudged, disk: WatchedDisk, role: Role | None = None
    ) -> None:
        self._world = world
        self._model = model
        self._disk = disk
        self._role = role
        self._power_loss = world.plan.power_loss if role is None else role.power_loss
        self._config: BrokerConfig
        self._replicating: Replicating | None = None
        self._note = BrokerRole()  # of this life
        self._life = itertools.count(1)
        self._turn_is_due = False
        self._is_plain = True  # whether only plain sends came since the last turn
        self._turn_count = 0
        self._is_closing = False
        self.is_lost = self.is_serving = False
        self.is_fenced = False  # another broker is the master, and it has ended
        self.began_ms = 0.0  # its life
        self.on_serving: Callable[[], None] = lambda: None
        disk.segments_kept = world.plan.segments_kept
        self._loop: WorldLoop | None = None
        self._writer: LogWriter
        self.lives = 0
        self.core: BrokerCore | None = None
        self.network = Network(world, self)

    def start(self) -> None:
        """Start the broker over what the disk has."""
        world = self._world
        if self.core is not None or self.is_lost or self.is_fenced:
            return
        self.began_ms = world.time_ms
        self.lives = next(self._life)
        world.note("start", self.lives)
        if not world.is_calm and world.chance(world.plan.crash_in_recovery):
            self._disk.stop_before = len(self._disk.operations) + world.random.randint(0, 30)
        core = None
        try:
            with without_room():
                properties: Mapping[str, str] = {}
                if self._role is not None:
                    self._note, properties = self._role.settle(
                        self._disk, world.plan.segment_size, self.stop_cleanly
                    )
                self._config = config_of(world.plan, properties)
                opened = BrokerCore(self._config, self._disk)
                opened.open(world.now_ms)
                core = opened
        except MachineStopped:
            world.note("crash while starting")
            self._fall()
            return
        if core is None:
            world.note("no room to start")
            self._disk.kill()
            world.later(world.plan.restart_after_ms, self.start)
            return
        self._disk.stop_before = None
        self.core = core
        self._is_closing = self._turn_is_due = self._is_plain = False
        self._model.opened(core)
        guard = self._guard_of(self.lives)
        self._loop = WorldLoop(world, guard, self._role.wires if self._role else None)
        guard(lambda: self._begin_life(guard))

    def _begin_life(self, guard: Guard) -> None:
        core, replicating = self._alive(), None
        if self._role is not None:
            replicating = self._role.bound(self._config, self._send, self._run_turn, self._note)
        is_sync_flush = self._config.flush_disk_type == SYNC_FLUSH
        self._writer = LogWriter(
            self._disk,
            0 if is_sync_flush else (self._world.plan.sync_interval_ms or 50.0) / 1000,
            self._stored,
            WorldSyncs(self._world, guard),
            self._note_room,
            self._saved,
            on_written=replicating.whole.early(core) if replicating else None,
            jobs=WorldJobs(self._world, guard),
            on_broken=broken,
        )
        self._replicating = replicating
        if replicating is None:
            self._serve()
        else:
            self._running.carry_out(self._begin_to_replicate(replicating))

    async def _begin_to_replicate(self, replicating: Replicating) -> None:
        try:
            with without_room():
                await replicating.begin(
                    self._running, self._alive(), self._writer, self._send, self._serve
                )
                return
        except FormerMaster as error:
            self._note.end(RoleEnd(error))
            return
        self._world.note("no room to begin")
        self._end_life(is_power_loss=False)
        self._disk.kill()
        self._world.later(self._world.plan.restart_after_ms, self.start)

    def _serve(self) -> None:
        """Let clients in."""
        plan = self._world.plan
        self.is_serving = True
        self.on_serving()
        self._run_turn()
        self._every(plan.tick_ms, self._tick)
        parts = (self._alive(), self._writer, self._running.carry_out)
        chores = Chores(self._world, self._model, self._disk, *parts)
        self._every(plan.checkpoint_ms, chores.checkpoint)
        self._every(plan.clean_ms, chores.clean)
        self._every(self._config.timer_interval_ms, chores.checkpoint_timers)

    def _guard_of(self, life: int) -> Guard:
        """Return what runs a step only in this life, and lets the machine fall when it stops."""

        def guard(act: Callable[[], None]) -> None:
            if self.core is not None and self.lives == life:
                try:
                    with self._running.running():
                        act()
                except MachineStopped as stop:
                    self._world.note("stopped at", *stop.args)
                    self._fall()

        return guard

    def _every(self, interval_ms: float, act: Callable[[], None]) -> None:
        guard = self._guard_of(self.lives)

        def again() -> None:
            if not self._is_closing:
                act()
                self._world.later(interval_ms, lambda: guard(again))

        self._world.later(interval_ms, lambda: guard(again))

    # what happens to it

    def set_clock(self, change_ms: float) -> None:
        """Set the clock forward or back."""
        self._world.note("the clock is set by", change_ms)
        self._world.set_clock(change_ms)
        self._model.clock_was_set(change_ms)

    def fill_disk(self) -> None:
        """Let the disk be full for a while."""
        world = self._world
        if not (self._disk.is_full or self.is_lost):
            world.note("the disk is full")
            self._disk.is_full = True
            world.later(world.around(world.plan.full_for_ms), self.give_room)

    def give_room(self) -> None:
        """Let the disk have room again."""
        self._world.note("the disk has room")
        self._disk.give_room()

    def crash_soon(self) -> None:
        """Stop the machine at one of its next operations on the disk, a write perhaps half done."""
        random = self._world.random
        if self.core is not None:
            ahead = 0 if self._disk.is_full else random.randint(0, 6)
            self._disk.stop_before = len(self._disk.operations) + ahead
            self._disk.torn = random.choice((0, random.randint(1, 2_000)))

    def stop_cleanly(self) -> None:
        """Stop as on SIGTERM, and start again."""
        if self.core is None or self._is_closing:
            return
        self._world.note("stop cleanly")
        self._is_closing = True

        def close() -> None:
            self._running.carry_out(self._close())

        self._guard_of(self.lives)(close)

    async def _close(self) -> None:
        """Stop; what `BrokerServer.close` does once nobody is listened to."""
        core = self._alive()
        if self._replicating is not None:
            await self._replicating.cancel()
        self._run_turn()
        await self._writer.drain()
        self._writer.close()
        if not self._writer.is_waiting_for_room:
            with without_room():
                core.close(self._world.now_ms)
        with without_room():
            self._note.close()
        self._end_life(is_power_loss=False)
        if self._note.is_fenced:
            self._world.note("fenced", self._note.ending)
            self.is_fenced = True
            return
        self._world.later(self._world.plan.restart_after_ms, self.start)

    def _end_life(self, *, is_power_loss: bool) -> None:
        self.core = None
        self.is_serving = False
        self.forget()
        self._model.down(is_power_loss=is_power_loss)
        self.network.cut_all()
        self._replicating = None
        if self._role is not None and self._loop is not None:
            self._role.wires.tear(self._loop)

    def forget(self) -> None:
        """Let go of work that never began; nothing is played any more."""
        if self._loop is not None:
            self._loop.stop()

    def _fall(self) -> None:
        world = self._world
        is_power_loss = world.chance(self._power_loss)
        world.note("power loss" if is_power_loss else "kill")
        self._end_life(is_power_loss=is_power_loss)
        if is_power_loss:
            self._disk.lose_power(world.random)
        else:
            self._disk.kill()
        world.later(world.around(world.plan.restart_after_ms), self.start)

    def lose_disk(self) -> None:
        """Stop, and start again with an empty disk."""
        self._end_life(is_power_loss=False)
        self._disk.wipe()
        self._disk.kill()
        self._world.later(self._world.plan.restart_after_ms, self.start)

    def cut_log(self, offset: int) -> None:
        """Stop, cut the log as `reliable-mq broker truncate` does, and start again."""
        self._end_life(is_power_loss=False)
        self._disk.kill()
        truncate(self._disk, self._note.note, offset, self._config.segment_size)
        self._world.later(self._world.plan.restart_after_ms, self.start)

    def destroy(self) -> bool:
        """Stop for ever, however it goes; return whether by power loss."""
        self.is_lost = True
        is_power_loss = self._world.chance(self._power_loss)
        if self.core is not None:
            self._end_life(is_power_loss=is_power_loss)
        elif is_power_loss:
            self._model.down(is_power_loss=True)
        if is_power_loss:
            self._disk.lose_power(self._world.random)
        self._disk.kill()
        return is_power_loss

    def came(self, link: Link, data: bytes) -> None:
        """Take bytes that a client sent; a broker that stops reads no more."""
        if not self._is_closing:
            self._guard_of(self.lives)(lambda: self._receive(link, data))

    def _receive(self, link: Link, data: bytes) -> None:
        core, now_ms = self._alive(), self._world.now_ms
        for asked, given in (read := list(link.read(core, data))):
            self._look_for_room()
            for command in asked:
                self._world.note("request", link.connection.id, command.code, command.opaque)
                if not link.peer.is_broker:
                    self._model.received(link.connection.id, command, now_ms)
            if len(read) == 1 and not self._turn_is_due and self._store_at_once(link, given):
                return
            self._is_plain = core.receive(link.connection, given, now_ms) and self._is_plain
            if self._model.has_room and core.state.pressure.is_disk_full:
                self._model.found_no_room()
        if not self._turn_is_due:
            self._turn_is_due = True
            guard, after_ms = self._guard_of(self.lives), self._world.random.choice((0, 0, 1))
            self._world.later(after_ms, lambda: guard(self._due_turn))

    def _store_at_once(self, link: Link, command: Command) -> bool:
        """Store what came alone without a turn, if it needs none; return whether it was stored."""
        master = self._replicating.whole.master if self._replicating is not None else None
        parts = self._world, self._alive(), self._writer, self.network, self._model, master
        return store_at_once(*parts, link, command)

    def lost(self, link: Link) -> None:
        """Note that a link is gone."""
        if self.core is not None:
            self.core.disconnected(link.connection.id)
            if not link.peer.is_broker:
                self._model.disconnected(link.connection.id)

    def _due_turn(self) -> None:
        if self._turn_is_due:
            self._run_turn(is_plain=self._is_plain)

    def _run_turn(self, *, is_plain: bool = False) -> None:
        self._turn_is_due, self._is_plain = False, True
        core = self._alive()
        self._model.fenced(is_fenced=core.state.is_unverified)
        turn = Turn(core.take_sends(), [], {}) if is_plain else core.take_turn()
        replies = whole(turn.replies)
        turn_of_clients = msgspec.structs.replace(turn, replies=self.network.for_clients(replies))
        self._model.turn(turn_of_clients, self._world.now_ms)
        self.network.answer(replies)
        self._writer.write_turn(turn)
        self._turn_count += 1
        if self._turn_count % _CHECK_EVERY == 0:
            check_invariants(core)
            if self._writer.gathered is not None:
                self._writer.gathered.invariants()
            if self._replicating is not None and self._replicating.whole.master is not None:
                self._replicating.whole.master.invariants()

    def _send(self, replies: list[Answer]) -> None:
        """Send what waited for a slave, between two turns."""
        taken = whole(replies)
        self._model.sent(self.network.for_clients(taken))
        self.network.answer(taken)

    def _stored(self, end: int, is_durable: bool) -> None:
        core = self._alive()
        self._world.note("stored", end, "durable" if is_durable else "written")
        whole = self._replicating.whole if self._replicating is not None else None
        core.stored(end, durable=is_durable, report=whole.report if whole is not None else None)
        self._model.stored(end, self._world.now_ms)
        if whole is not None and whole.master is not None:
            whole.master.stored()
        self._run_turn()

    def _note_room(self, has_room: bool) -> None:
        self._world.note("room" if has_room else "no room")
        self._alive().state.pressure.note_room(has_room=has_room)
        self._look_for_room()

    def _look_for_room(self) -> None:
        pressure = self._alive().state.pressure
        refusal = pressure.refusal[0] if pressure.refusal else None
        self._model.room(has_room=not pressure.is_disk_full, refusal=refusal)

    def _saved(self) -> None:
        self._model.tables.saved(self._disk)
        self._alive().saved()
        self._run_turn()

    def _tick(self) -> None:
        core, now_ms = self._alive(), self._world.now_ms
        core.tick(now_ms)
        core.index_some(now_ms)  # the server's shell does this when nobody sends
        self._model.ticked(now_ms)
        self._run_turn()
        self._look_for_room()
        self._model.nothing_is_late(now_ms)

    @property
    def _running(self) -> WorldLoop:
        assert self._loop is not None
        return self._loop

    def _alive(self) -> BrokerCore:
        assert self.core is not None
        return self.core
