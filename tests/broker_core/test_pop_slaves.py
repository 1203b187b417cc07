"""Popped messages and slaves: a promoted one goes on, and one that stands in leaves them alone."""

import pytest
from tests.broker_core.pop_world import INVISIBLE_MS, RETRY, PopWorld
from tests.broker_core.test_deliveries_elsewhere import Acting, give_back
from tests.replication.slave_world import Slave, both_pass


def a_master() -> PopWorld:
    """Return a master with three messages in flight, of which one is acknowledged."""
    master = PopWorld()
    for number in range(3):
        master.send(b"%d" % number)
    messages = master.pop()
    master.ack(messages[1])
    return master


@pytest.mark.parametrize("passed_ms", [2_000, INVISIBLE_MS - 300, INVISIBLE_MS + 3_000])
def test_a_promoted_slave_goes_on_with_what_is_in_flight(passed_ms: int) -> None:
    master = a_master()
    slave = Slave(master)
    slave.follow()
    both_pass(master, slave, passed_ms)
    slave.follow()
    both_pass(master, slave, 100)
    slave.follow()

    promoted = slave.promoted()
    promoted.pass_time(max(0, INVISIBLE_MS - passed_ms) + 2_000, step=50)

    assert [record.body for record in promoted.records(RETRY)] == [b"0", b"2"]


def test_a_slave_that_stands_in_leaves_them_to_its_master() -> None:
    master = a_master()
    master.pass_time(500)
    slave = Acting(master)
    slave.follow()
    slave.stand_in()
    slave.pass_time(INVISIBLE_MS + 2_000)
    slave.run()
    assert slave.got == []

    give_back(slave, master)
    master.pass_time(INVISIBLE_MS + 2_000)

    assert [record.body for record in master.records(RETRY)] == [b"0", b"2"]


def test_a_promoted_slave_hears_all_acknowledgements_before_a_message_comes_back() -> None:
    """It knows nothing of its master's timers, and takes up more than one turn hands over."""
    master = PopWorld()
    master.send(b"popped")
    (message,) = master.pop()
    slave = Slave(master)
    slave.follow()
    for number in range(1_200):
        master.send(b"%d" % number, topic="others", TIMER_DELAY_MS="1")
    assert master.ack(message).code == 0
    both_pass(master, slave, INVISIBLE_MS + 1_000)
    slave.copy()

    promoted = slave.promoted()
    promoted.pass_time(2_000)

    assert promoted.records(RETRY) == []
