"""A slave of another world: it copies and asks when it is told to."""

from tests.broker_core.broker_world import TOPIC, BrokerWorld

from reliable_mq.broker_core.master_tables import MasterTables
from reliable_mq.broker_core.store.copier import Copier
from reliable_mq.replication.copied_log import CopiedLog
from reliable_mq.replication.ha_frames import Transfer


class Slave(BrokerWorld):
    """A slave of another world, which it follows when it is told to."""

    def __init__(self, master: BrokerWorld, **properties: str) -> None:
        self.master = master
        roles = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
        super().__init__(None, **{**roles, **properties})

    def start(self) -> None:
        super().start()
        self.tables = MasterTables(self.state)

    def copy(self, end: int = 0) -> None:
        """Copy what is new in the log, all or up to `end`."""
        log, own = self.master.state.store.log, self.state.store.log
        copied, copier = CopiedLog(own.end, own.segment_size), Copier(self.state.store)
        end = end or log.end
        while copied.received < end:
            part = log.read(copied.received, min(1_000, end - copied.received))
            for piece in copied.take(Transfer(copied.received, part)):
                copier.append(*piece)
        self.finish_turn()

    def ask_tables(self) -> None:
        """Ask the master for its tables; those of progress wait for `settle`."""
        for asked in self.tables.begin():
            answer = self.master.ask(asked.code, asked.ext_fields)
            self.tables.answered(asked.code, answer, self.now_ms)

    def settle(self) -> bool:
        """Take over what waits, if the log is there; tell the master what was committed here."""
        if not self.tables.settle(self.now_ms):
            return False
        for place, offset, command in self.tables.commits():
            answer = self.master.ask(command.code, command.ext_fields)
            self.tables.committed(place, offset, answer, self.now_ms)
        self.finish_turn()
        return True

    def follow(self) -> None:
        """Copy what is new, and take the tables over."""
        self.copy()
        self.ask_tables()
        assert self.settle()

    def promoted(self) -> "Promoted":
        """Stop, and start again as a master."""
        self.stop()
        return Promoted(self)


class Promoted(BrokerWorld):
    """The master that a slave becomes, over the slave's disk and at its time."""

    def __init__(self, slave: Slave) -> None:
        self._begin_ms = slave.now_ms
        roles = {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
        super().__init__(slave.disk, **{**slave.properties, **roles})

    def start(self) -> None:
        self.now_ms = self._begin_ms
        super().start()


def a_master() -> BrokerWorld:
    """Return a master with a topic of four queues, and a group."""
    made = BrokerWorld(None, mappedFileSizeTimerLog="4096")
    made.create_topic(queues=4)
    made.subscribe(TOPIC)
    return made


def bodies(world: BrokerWorld) -> list[bytes]:
    """Return what queue 0 of the topic holds."""
    return [record.body for record in world.records(TOPIC)]


def both_pass(master: BrokerWorld, slave: Slave, milliseconds: int) -> None:
    """Let time pass at both."""
    master.pass_time(milliseconds)
    slave.pass_time(milliseconds)
