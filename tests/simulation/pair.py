"""A slave beside the broker's machine: what happens to it, and what must hold in the end."""

from collections.abc import Callable

from tests.simulation.chronicle import Chronicle
from tests.simulation.client import Asker, Asking, Memory
from tests.simulation.facts import Entry, Violation, first_kept
from tests.simulation.followed_offsets import LOOK_MS, FollowedOffsets, offset_of
from tests.simulation.follower import Follower
from tests.simulation.in_world import WorldLinks
from tests.simulation.invariants import check_invariants
from tests.simulation.kinds.offsets import QueueEnds
from tests.simulation.kinds.pulls import COMMIT, Pull
from tests.simulation.machine import Machine
from tests.simulation.model import Model
from tests.simulation.roles import ALL, PORT, Role
from tests.simulation.settings import config_of
from tests.simulation.watched_disk import WatchedDisk
from tests.simulation.wires import Wires
from tests.simulation.world import World

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.truncation import begin_of_record
from reliable_mq.wire.command import Command

_READERS = 2
_TEND_MS = 1_000.0  # between two looks of the operator


class _Read(Pull):
    """A pull at a slave; commits go to the master."""

    def make(self, memory: Memory) -> Command | None:
        command = super().make(memory)
        if command is not None:
            flags = int(command.ext_fields["sysFlag"]) & ~COMMIT
            command.ext_fields["sysFlag"] = str(flags)
        return command


_READ: dict[str, Asking] = {"pull": _Read(), "ends": QueueEnds()}


class Pair:
    """The broker's machine as a master, and its slave's."""

    def __init__(self, world: World, model: Model, disk: WatchedDisk) -> None:
        plan = world.plan
        self._world = world
        self._model = model
        self.wires = wires = Wires(world)
        self._chronicle = Chronicle()
        disk.on_log = self._chronicle.wrote
        master = {"brokerRole": plan.role, "haListenPort": str(PORT), "haAllowedAddresses": ALL}
        if plan.slave_timeout_ms:
            master["slaveTimeout"] = str(plan.slave_timeout_ms)
        self.master = Machine(world, model, disk, Role(master, wires, plan.master_power_loss))
        self._disk = WatchedDisk(world.random, lambda: world.time_ms)
        self.follower = Follower(
            self._chronicle, self._disk, is_sync_flush=plan.is_slave_sync_flush
        )
        slave = {
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "slaveReadEnable": "true",
            "flushDiskType": "SYNC_FLUSH" if plan.is_slave_sync_flush else "ASYNC_FLUSH",
        }
        self.slave = Machine(
            world, self.follower, self._disk, Role(slave, wires, plan.slave_power_loss)
        )
        self._offsets = FollowedOffsets()
        self.links = WorldLinks(world, self.master, wires)
        model.copying.on_copied = self.follower.acknowledged
        model.on_opened = self._master_opened
        self._readers = [
            Asker(world, self.slave, number, _READ, (5, 1)) for number in range(_READERS)
        ]

    def faults(self) -> list[tuple[float, Callable[[], None]]]:
        """Return what happens to the two, and how often."""
        plan = self._world.plan
        return [
            (plan.part_every_ms, self._part),
            (plan.slave_crash_every_ms, self._hurt),
            (plan.slave_full_every_ms, self.slave.fill_disk),
        ]

    def start(self) -> None:
        """Start both machines."""
        self.master.start()
        self.slave.start()
        self._tend()
        self._look()

    def _look(self) -> None:
        """Note the offsets of both, again and again."""
        world = self._world
        cores = (self.slave.core, self.master.core)
        states = [core.state for core in cores if core is not None]
        if self.slave.core is None or self._disk.is_full:
            states = []
        self._offsets.look(world.time_ms, self._model.tables.offsets, states)
        world.later(LOOK_MS, self._look)

    def _tend(self) -> None:
        """Do what an operator does.

        A slave that was away too long gets an empty store. One that has something else is cut.
        """
        master, slave = self.master.core, self.slave.core
        if master is not None and slave is not None:
            end = slave.state.store.log.end
            if 0 < end < master.state.store.log.start:
                self._world.note("the slave gets an empty store")
                self.slave.lose_disk()
                self.follower.emptied()
            elif slave.state.is_unverified and not self._disk.is_full:
                cut = begin_of_record(slave.state.store.log, self.follower.same)
                self._world.note("the slave is cut", cut)
                self.slave.cut_log(cut)
                self.follower.was_cut(cut)
        self._world.later(_TEND_MS, self._tend)

    def _master_opened(self, core: BrokerCore) -> None:
        self._chronicle.opened(core.state.store.log)
        self.follower.master_opened()

    def _part(self) -> None:
        world = self._world
        if not self.wires.are_parted:
            world.note("parted")
            self.wires.part(are_parted=True)
            world.later(world.around(world.plan.part_for_ms), self._join)

    def _join(self) -> None:
        if self.wires.are_parted:
            self._world.note("joined")
            self.wires.part(are_parted=False)

    def _hurt(self) -> None:
        world = self._world
        if world.chance(world.plan.clean_stop):
            self.slave.stop_cleanly()
            return
        self.slave.crash_soon()
        if world.chance(world.plan.both_die):
            self.master.crash_soon()

    def make_peace(self) -> None:
        """End the slave's troubles."""
        self._disk.stop_before = None
        self.slave.give_room()
        self._join()

    def forget(self) -> None:
        """Let go of work that never began; nothing is played any more."""
        self.master.forget()
        self.slave.forget()

    # in the end

    def both_are_the_same(self) -> None:
        """Check that the slave has everything that its master has, and the same tables."""
        if self.slave.core is None or self.master.core is None:
            raise Violation("the slave does not come up again")
        check_invariants(self.slave.core)
        state, of_master = self.slave.core.state, self.master.core.state
        end, wanted = state.store.log.end, of_master.store.log.end
        if end != wanted:
            raise Violation(f"the slave's log ends at {end}, its master's at {wanted}")
        self.follower.compare_all()
        self._can_be_read(state.store, end)
        if state.topics.by_name != of_master.topics.by_name:
            raise Violation("the slave has other topics than its master")
        if (
            not of_master.groups.by_name.items() <= state.groups.by_name.items()
        ):  # its readers make some
            raise Violation("the slave lacks groups of its master")
        for key in self._model.tables.offsets:
            if state.offsets.get(*key) != of_master.offsets.get(*key):
                raise Violation(f"the slave has another offset than its master: {key}")
        if state.schedule.saved() != of_master.schedule.saved():
            raise Violation("the slave has other progress of delays than its master")

    def lose_master(self) -> None:
        """Lose the master with its disk, and let the slave be the master of what it has.

        Everything must be there that was acknowledged because a slave has it.
        """
        world = self._world
        world.note("the master is lost")
        self.master.destroy()
        is_power_loss = self.slave.destroy()
        self._disk.stop_before = None
        self.slave.give_room()
        floors = self._offsets.floors()
        must_have = self.follower.must_survive(is_power_loss=is_power_loss)
        core = BrokerCore(config_of(world.plan, {"brokerRole": "ASYNC_MASTER"}), self._disk)
        core.open(world.now_ms)
        end = core.state.store.log.end
        if end < must_have:
            raise Violation(f"the promoted slave ends at {end}, {must_have} were promised")
        check_invariants(core)
        self._can_be_read(core.state.store, end)
        for key, floor in floors.items():
            queue = core.state.store.queue(*key[1:])
            offset = offset_of(core.state, key)
            if offset < min(floor, queue.end if queue else 0):
                raise Violation(f"{key} goes back from {floor} to {offset} with the promotion")

    def _can_be_read(self, store: MessageStore, end: int) -> None:
        """Compare every queue of the slave with the model, up to where its log ends."""
        start = store.log.start
        for (topic, queue_id), queue in self._model.queues.items():
            kept = queue.entries[first_kept(queue.entries, start) :]
            entries = [each for each in kept if each.log_end <= end]
            for entry in entries:
                _expect_at(store, topic, queue_id, entry)


def _expect_at(store: MessageStore, topic: str, queue_id: int, entry: Entry) -> None:
    queue = store.queue(topic, queue_id)
    if queue is None or queue.end <= entry.queue_offset:
        raise Violation(f"the slave lacks {entry}")
    record = store.read_record(queue.unit(entry.queue_offset).commit_log_offset)
    if record is None or record.body != entry.body:
        raise Violation(f"at the slave {entry} reads as {record}")
