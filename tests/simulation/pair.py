"""A slave beside the broker's machine: what happens to it, and what must hold in the end."""

from collections.abc import Callable, Mapping

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
from tests.simulation.names import ADDRESS as NAME_SERVER
from tests.simulation.names import WorldNames
from tests.simulation.promoted_pops import all_come_back
from tests.simulation.roles import ALL, PORT, Role
from tests.simulation.settings import config_of
from tests.simulation.watched_disk import WatchedDisk
from tests.simulation.wires import Wires
from tests.simulation.world import World

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.commit_log import FOLDER as LOG_FOLDER
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.role_note import RoleNote, load_role, save_role
from reliable_mq.broker_core.store.truncation import begin_of_record
from reliable_mq.runtime.broker_role import BrokerRole
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


READ: dict[str, Asking] = {"pull": _Read(), "ends": QueueEnds()}


class Pair:
    """The broker's machine as a master, and its slave's."""

    def __init__(self, world: World, model: Model, disk: WatchedDisk) -> None:
        plan = world.plan
        self.world = world
        self._model = model
        self.wires = wires = Wires(world)
        self._chronicle = Chronicle()
        self.told_ends = 0  # of the master's log, a client was told that a slave has it
        self.parted_ms = 0.0  # when they were last parted, or joined
        disk.on_log = self._chronicle.wrote
        self.master_disk = disk
        self.master_properties = master = {
            "brokerRole": plan.role,
            "brokerIP1": "10.0.0.1",
            "haListenPort": str(PORT),
            "haAllowedAddresses": ALL,
            "namesrvAddr": NAME_SERVER,
        }
        if plan.slave_timeout_ms:
            master["slaveTimeout"] = str(plan.slave_timeout_ms)
        self.master = Machine(world, model, disk, Role(master, wires, plan.master_power_loss))
        self.slave_disk = WatchedDisk(world.random, lambda: world.time_ms)
        self.follower = Follower(
            self._chronicle, self.slave_disk, is_sync_flush=plan.is_slave_sync_flush
        )
        self.slave_properties = {
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "brokerIP1": "10.0.0.2",
            "haAllowedAddresses": ALL,
            "namesrvAddr": NAME_SERVER,
            "slaveReadEnable": "true",
            "flushDiskType": "SYNC_FLUSH" if plan.is_slave_sync_flush else "ASYNC_FLUSH",
        }
        role = Role(self.slave_properties, wires, plan.slave_power_loss)
        self.slave = Machine(world, self.follower, self.slave_disk, role)
        self.names = WorldNames(world)
        self._offsets = FollowedOffsets()
        self.links = WorldLinks(world, self.master, wires)
        model.copying.on_copied = self._acknowledged
        model.on_opened = self._master_opened
        self._readers = [
            Asker(world, self.slave, number, READ, (5, 1)) for number in range(_READERS)
        ]

    def faults(self) -> list[tuple[float, Callable[[], None]]]:
        """Return what happens to the two, and how often."""
        plan = self.world.plan
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
        world = self.world
        cores = (self.slave.core, self.master.core)
        states = [core.state for core in cores if core is not None]
        if self.slave.core is None or self.slave_disk.is_full:
            states = []
        self._offsets.look(world.time_ms, self._model.tables.offsets, states)
        world.later(LOOK_MS, self._look)

    def _tend(self) -> None:
        """Do what an operator does, again and again."""
        if self.master.core is not None:
            self.world.note(tend(self.slave, self.follower, self.slave_disk, self.master.core))
        self.world.later(_TEND_MS, self._tend)

    def _acknowledged(self, entry: Entry) -> None:
        self.follower.acknowledged(entry)
        self.told_ends = max(self.told_ends, entry.log_end)

    def _master_opened(self, core: BrokerCore) -> None:
        self._chronicle.opened(core.state.store.log)
        self.told_ends = min(self.told_ends, self._chronicle.end)
        self.follower.master_opened()

    def _part(self) -> None:
        world = self.world
        if not self.wires.are_parted:
            world.note("parted")
            self.parted_ms = world.time_ms
            self.wires.part(are_parted=True)
            world.later(world.around(world.plan.part_for_ms), self._join)

    def _join(self) -> None:
        if self.wires.are_parted:
            self.world.note("joined")
            self.parted_ms = self.world.time_ms
            self.wires.part(are_parted=False)

    def _hurt(self) -> None:
        world = self.world
        if world.chance(world.plan.clean_stop):
            self.slave.stop_cleanly()
            return
        self.slave.crash_soon()
        if world.chance(world.plan.both_die):
            self.master.crash_soon()

    def make_peace(self) -> None:
        """End the slave's troubles."""
        self.slave_disk.stop_before = None
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
        """Lose the master with its disk, and let the slave be the master of what it has."""
        self.world.note("the master is lost")
        self.master.destroy()
        self.promote()
        if not self.world.plan.set_clock_every_ms and not self.slave_disk.is_full:
            core = self.opened_again(self.slave_disk, self.slave_properties)
            all_come_back(core, self.slave_disk, self.world.now_ms, self._model.start)

    @property
    def has_copied(self) -> bool:
        """Whether the slave's store has a log. `broker promote` refuses a store without one."""
        return bool(self.slave_disk.names(LOG_FOLDER))

    def promote(self) -> None:
        """End the slave, however it goes, and promote its store as the operator does.

        Everything must be there that was acknowledged because a slave has it.
        """
        self.world.note("the slave is promoted")
        self.slave.destroy()
        disk = self.slave_disk
        disk.stop_before = None
        self.slave.give_room()
        floors = self._offsets.floors()
        must_have = self.follower.promised
        note = load_role(disk) or RoleNote()
        save_role(disk, note.promoted("ASYNC_MASTER", note.epoch))
        self._model.has_rival = True
        core = self.opened_again(disk, self.slave_properties)
        end = core.state.store.log.end
        if end < must_have:
            raise Violation(f"the promoted slave ends at {end}, {must_have} were promised")
        check_invariants(core)
        self._can_be_read(core.state.store, min(end, self.follower.same))
        for key, floor in floors.items():
            queue = core.state.store.queue(*key[1:])
            offset = offset_of(core.state, key)
            if offset < min(floor, queue.end if queue else 0):
                raise Violation(f"{key} goes back from {floor} to {offset} with the promotion")
        disk.kill()

    def common(self) -> bytes:
        """Return what both logs have, from the first offset on."""
        return self._chronicle.read(0, self.follower.same)

    def opened_again(self, disk: WatchedDisk, properties: Mapping[str, str]) -> BrokerCore:
        """Return what a broker finds on a disk that no machine uses."""
        role = BrokerRole()
        config = config_of(self.world.plan, role.settle(disk, properties))
        role.prepare(disk, config.segment_size)
        core = BrokerCore(config, disk)
        core.open(self.world.now_ms)
        return core

    def _can_be_read(self, store: MessageStore, end: int) -> None:
        """Compare every queue of the slave with the model, up to where its log ends."""
        start = store.log.start
        for (topic, queue_id), queue in self._model.queues.items():
            kept = queue.entries[first_kept(queue.entries, start) :]
            entries = [each for each in kept if each.log_end <= end]
            for entry in entries:
                _expect_at(store, topic, queue_id, entry)


def tend(slave: Machine, follower: Follower, disk: WatchedDisk, master: BrokerCore) -> str:
    """Do what an operator does for a slave, and return it.

    One that was away too long gets an empty store. One that has something else is cut.
    """
    core = slave.core
    if core is None:
        return ""
    log = core.state.store.log
    common = max(log.start, master.state.store.log.start)  # where both logs are there
    has_other = core.state.is_unverified and not disk.is_full
    lacks_all = has_other and follower.same <= common > 0
    if 0 < log.end <= master.state.store.log.start or lacks_all:  # no record is in both logs
        slave.lose_disk()
        follower.emptied()
        return "the slave gets an empty store"
    if has_other:
        cut = begin_of_record(log, follower.same)
        slave.cut_log(cut)
        follower.was_cut(cut)
        return f"the slave is cut at {cut}"
    return ""


def _expect_at(store: MessageStore, topic: str, queue_id: int, entry: Entry) -> None:
    queue = store.queue(topic, queue_id)
    if queue is None or queue.end <= entry.queue_offset:
        raise Violation(f"the slave lacks {entry}")
    record = store.read_record(queue.unit(entry.queue_offset).commit_log_offset)
    if record is None or record.body != entry.body:
        raise Violation(f"at the slave {entry} reads as {record}")
