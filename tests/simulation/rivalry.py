"""Two masters of one name: the slave is promoted, and its former master may live, or come back.

Of the former one: it does not start to serve when it can know of the promotion, it ends when it
learns of it, and it says of its log not less than what was acknowledged. As a slave it then becomes
a copy of the promoted one: what nobody was told of is cut by itself, the rest by an operator.
"""

from tests.simulation.chronicle import Chronicle
from tests.simulation.client import Asker
from tests.simulation.facts import Violation
from tests.simulation.follower import Follower
from tests.simulation.in_world import WorldLinks
from tests.simulation.machine import Machine
from tests.simulation.pair import READ, Pair, tend
from tests.simulation.roles import Role
from tests.simulation.unjudged import Unjudged
from tests.simulation.wires import Wires

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.acknowledged import acknowledged_until

RIVALRY_MS = 4_000.0  # of faults
CALM_MS = 6_000.0  # then: enough for the former master to come up, and to look for the new one
COPY_MS = 1_500.0  # for the former master to get what is new
_TEND_MS = 3_000.0
_PROMOTED = "10.0.0.2:10911"


class Rivalry:
    """The end of a seed in which an operator promotes the slave.

    Args:
        pair: the two; clients go on at the master.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        world = pair.world
        self._wires = Wires(world)
        self._chronicle = Chronicle()
        pair.slave_disk.on_log = self._chronicle.wrote
        role = Role(pair.slave_properties, self._wires, 0.0)
        self._promoted = Machine(world, _Promoted(self._chronicle), pair.slave_disk, role)
        self._links = WorldLinks(world, self._promoted, self._wires)
        is_sync_flush = world.plan.is_slave_sync_flush
        self._follower = Follower(self._chronicle, pair.master_disk, is_sync_flush=is_sync_flush)
        self._follower.is_former = True
        properties = {**pair.slave_properties, "brokerIP1": "10.0.0.1"}
        self._former = Machine(
            world, self._follower, pair.master_disk, Role(properties, self._wires, 0.0, self._cut)
        )
        self._end = 0

    def begin(self) -> None:
        """Promote the slave."""
        pair = self._pair
        pair.promote()
        self._chronicle.wrote(0, pair.common())
        pair.names.brokers[_PROMOTED] = self._links.ask
        pair.master.on_serving = self._former_serves
        self._promoted.start()

    def _former_serves(self) -> None:
        """Note that the former master starts to serve."""
        pair = self._pair
        began_ms, known_ms = pair.master.began_ms, pair.names.known_ms.get(_PROMOTED)
        could_ask = not pair.wires.are_parted and pair.parted_ms < began_ms
        if could_ask and known_ms is not None and known_ms < began_ms:
            raise Violation("the former master serves again, beside the promoted one")

    def is_over(self) -> None:
        """Check that one of the two is left."""
        pair, world = self._pair, self._pair.world
        if not self._promoted.is_serving:
            raise Violation("the promoted broker does not serve")
        if not pair.master.is_fenced:
            raise Violation("the former master goes on, beside the promoted one")
        core = pair.opened_again(pair.master_disk, pair.master_properties)
        end, told = core.state.store.log.end, pair.told_ends
        claimed = acknowledged_until(pair.master_disk, end)
        world.note("the former master ends at", end, "and claims", claimed, "told was", told)
        if claimed < min(told, end):
            raise Violation(f"the former master has acknowledged {told}, and knows of {claimed}")

    def demote(self) -> None:
        """Let the former master be a slave of the promoted broker."""
        pair, world = self._pair, self._pair.world
        world.note("the former master is demoted")
        pair.master_disk.kill()
        pair.links = self._links
        Asker(world, self._former, 0, READ, (5, 1)).asks_in_calm = True
        self._former.start()
        world.later(_TEND_MS, self._tend)

    def _cut(self, offset: int) -> None:
        """Note that the former master gives up what nobody was told of."""
        self._pair.world.note("the former master is cut by itself", offset)
        if offset < self._pair.told_ends:
            raise Violation(f"{self._pair.told_ends} was acknowledged, the log is cut at {offset}")
        self._follower.was_cut(offset)

    def _tend(self) -> None:
        """Do what an operator does, again and again: files of the master's log go meanwhile."""
        master, pair = self._promoted.core, self._pair
        if master is not None:
            pair.world.note(tend(self._former, self._follower, pair.master_disk, master))
        pair.world.later(_TEND_MS, self._tend)

    def note_end(self) -> None:
        """Note what the slave must have soon."""
        self._end = _alive(self._promoted).state.store.log.end

    def both_are_the_same(self) -> None:
        """Check that the former master has what the promoted one had a moment ago."""
        state = _alive(self._former).state
        if state.is_unverified or state.store.log.end < self._end:
            raise Violation(f"the former master is at {state.store.log.end} of {self._end}")
        self._follower.compare_all()

    def forget(self) -> None:
        """Let go of work that never began; nothing is played any more."""
        self._promoted.forget()
        self._former.forget()


class _Promoted(Unjudged):
    """Nobody judges the promoted broker; what it has is written down."""

    def __init__(self, chronicle: Chronicle) -> None:
        super().__init__()
        self._chronicle = chronicle

    def opened(self, core: BrokerCore) -> None:
        self._chronicle.opened(core.state.store.log)


def _alive(machine: Machine) -> BrokerCore:
    if machine.core is None:
        raise Violation("a broker does not come up again")
    return machine.core
