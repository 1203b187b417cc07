"""What the judge lets a slave serve after the master has lost messages that the slave has."""

from random import Random

import pytest
from tests.broker_core.broker_world import BrokerWorld, connection, pull_header
from tests.replication.slave_world import Slave, a_master
from tests.simulation.chronicle import Chronicle, parts_of
from tests.simulation.facts import Violation
from tests.simulation.follower import Follower
from tests.simulation.watched_disk import WatchedDisk

from reliable_mq.broker_core.requests import at_slave
from reliable_mq.broker_core.state import Turn
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request


class _Scene:
    """A slave with a message that its master has lost, and a pull that finds it."""

    def __init__(self, *, is_sync_flush: bool = True) -> None:
        master = a_master()
        master.send(b"lost by the master")
        self.slave = Slave(master)
        self.slave.follow()
        disk = WatchedDisk(Random(0), lambda: 0.0)
        chronicle = Chronicle()
        for offset, data in parts_of(master.state.store.log, 0):
            chronicle.wrote(offset, data)
        self.disk = disk
        self.follower = Follower(chronicle, disk, is_sync_flush=is_sync_flush)
        self.follower.opened(self.slave.core)
        chronicle.opened(BrokerWorld().state.store.log)
        self.follower.master_opened()

    def ask(self) -> None:
        """Have the slave take a pull, and read what it finds."""
        fields = {name: str(value) for name, value in pull_header().items()}
        command = request(RequestCode.PULL_MESSAGE, fields)
        self.follower.received(1, command, 0)
        self.slave.core.receive(connection(1), command, self.slave.now_ms)

    def learn(self) -> None:
        """Let the slave find that its log differs."""
        self.slave.state.is_unverified = True

    def end_turn(self) -> None:
        self.follower.turn(self.slave.core.take_turn(), 0)


def test_a_slave_serves_what_it_does_not_know_to_be_lost() -> None:
    scene = _Scene()
    scene.ask()
    scene.end_turn()


def test_what_was_read_before_the_slave_knew_leaves_with_its_turn() -> None:
    scene = _Scene()
    scene.ask()
    scene.learn()
    scene.end_turn()


def test_nothing_that_was_read_before_leaves_with_a_later_turn() -> None:
    scene = _Scene()
    scene.ask()
    scene.follower.turn(Turn(None, [], {}), 0)
    scene.learn()
    with pytest.raises(Violation, match="does not have"):
        scene.end_turn()


def test_nothing_is_read_once_the_slave_knows() -> None:
    scene = _Scene()
    scene.learn()
    scene.ask()
    scene.end_turn()  # it is refused


def test_a_slave_that_reads_although_it_knows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_slave, "_if_verified", lambda show: show)
    scene = _Scene()
    scene.learn()
    scene.ask()
    with pytest.raises(Violation, match="does not have"):
        scene.end_turn()


def test_what_a_slave_has_lost_with_its_power_is_not_promised_after_a_kill() -> None:
    """Its next start was killed before it had looked at its log."""
    scene = _Scene(is_sync_flush=False)
    follower = scene.follower
    follower._promised = 100
    scene.disk.log_opened(60)  # the medium has less than was acknowledged
    follower.down(is_power_loss=True)
    follower.down(is_power_loss=False)
    assert follower.promised == 60
