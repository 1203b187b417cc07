"""The resend scheduler where stubs are lost, late or many: their order, and who goes first."""

from tests.resend.worlds import QUEUE, World

from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import ConnectionLost
from reliable_mq.resend.scheduler import ResendCounts
from reliable_mq.resend.thread_scheduler import pause_after


def test_lost_stubs_of_one_key_are_resent_in_their_order_whichever_is_due_first(
    world: World,
) -> None:
    # Given two of one key that the broker lost, the later one due before the earlier one
    first = world.sent("k1", key="k", offset=10)
    second = world.sent("k2", key="k", offset=11)
    world.change(first, resend_time=utc_datetime(130.0))
    world.broker.progress["g"] = {QUEUE: (5, 5)}

    # When the later one is due, Then it waits: the earlier one cannot have been consumed
    assert world.scheduler.run_once(105.0) == ResendCounts(claimed=1, rested=1)

    # When the earlier one was sent again, Then the later one waits for its end
    world.change(second, resend_time=utc_datetime(131.0))
    assert world.scheduler.run_once(130.0).sent == 1
    assert world.scheduler.run_once(131.0).rested == 1
    world.change(first, status=1, resend_time=None)
    assert world.scheduler.run_once(140.0).sent == 1
    assert world.broker.sent == ["k1", "k2"]


def test_lost_stubs_of_one_key_that_are_due_together_go_in_the_order_of_their_rows(
    world: World,
) -> None:
    first = world.sent("k1", key="k", offset=10)
    world.sent("k2", key="k", offset=11)
    world.change(first, resend_time=utc_datetime(105.5))
    world.broker.progress["g"] = {QUEUE: (5, 5)}

    assert world.scheduler.run_once(106.0).sent == 2
    assert world.broker.sent == ["k1", "k2"]


def test_a_lost_stub_whose_resend_fails_holds_up_the_unsent_ones_of_its_key(world: World) -> None:
    # Given a lost one, and a later one that was never sent
    world.sent("k1", key="k", offset=10)
    later = world.write("k2", key="k")
    world.change(later, resend_time=utc_datetime(110.0))
    world.broker.progress["g"] = {QUEUE: (5, 5)}
    world.broker.failure = ConnectionLost("gone")

    # When sending the lost one again fails
    assert world.scheduler.run_once(105.0).failed == 1

    # Then the later one does not go before it
    world.broker.failure = None
    assert world.scheduler.run_once(112.0) == ResendCounts(claimed=1, rested=1)
    world.scheduler.run_once(125.0)
    assert world.broker.sent == ["k1", "k2"]


def test_an_earlier_stub_that_waits_for_a_person_holds_up_no_resend(world: World) -> None:
    dead = world.sent("k1", key="k", offset=4)
    world.sent("k2", key="k", offset=11)
    world.change(dead, given_up=True, resend_time=None)
    world.broker.progress["g"] = {QUEUE: (5, 5)}

    assert world.scheduler.run_once(105.0).sent == 1


def test_a_backlog_does_not_keep_an_unsent_stub_waiting(world: World) -> None:
    # Given more resting stubs than fit in a batch, all due before one that was never sent
    for number in range(12):
        world.sent(f"b{number}x", offset=100 + number)
    unsent = world.write("unsent")
    world.change(unsent, resend_time=utc_datetime(106.0))
    world.broker.progress["g"] = {QUEUE: (0, 200)}

    # When the scheduler runs once
    counts = world.new_scheduler("two", batch=5).run_once(107.0)

    # Then the unsent one is gone, and the scheduler knows that there is more
    assert world.broker.sent == ["unsent"]
    assert (counts.rested, counts.is_full) == (5, True)


def test_a_full_batch_is_followed_at_once_by_the_next_one() -> None:
    assert pause_after(ResendCounts(claimed=500, sent=500, is_full=True), 0.2, 1.0) == 0.0
    assert pause_after(ResendCounts(claimed=500, rested=500, is_full=True), 0.2, 1.0) == 0.2
    assert pause_after(ResendCounts(claimed=500, rested=500, is_full=True), 5.0, 1.0) == 1.0
    assert pause_after(ResendCounts(claimed=1, sent=1), 0.2, 1.0) == 0.05
    assert pause_after(ResendCounts(), 0.2, 1.0) == 1.0


def test_a_scheduler_wakes_when_the_next_stub_is_due_and_looks_at_its_interval_anyway() -> None:
    assert pause_after(ResendCounts(), 0.2, 1.0, ahead=0.3) == 0.3
    assert pause_after(ResendCounts(), 0.2, 1.0, ahead=-1.0) == 0.05
    assert pause_after(ResendCounts(), 0.2, 1.0, ahead=60.0) == 1.0


def test_an_old_stub_in_a_backlog_rests_longer(world: World) -> None:
    stub = world.sent("a")
    world.broker.progress["g"] = {QUEUE: (5, 9)}

    world.scheduler.run_once(100.0 + 3600.0)

    assert world.row(stub)["resend_time"] == utc_datetime(100.0 + 3600.0 + 256.0)


def test_a_lost_delayed_message_is_missed_on_a_topic_that_is_never_quiet(world: World) -> None:
    # Given a delayed message that the broker lost, and a group that is always one behind
    world.sent("a", deliver_time=104.0)
    world.broker.progress["g"] = {QUEUE: (99, 100)}
    assert world.scheduler.run_once(105.0).rested == 1

    # When the group has come to where the queue ended then, Then the message is missed
    world.broker.progress["g"] = {QUEUE: (100, 101)}
    assert world.scheduler.run_once(109.0).sent == 1


def test_a_delayed_message_is_missed_when_an_older_copy_of_the_store_ends_before_it(
    world: World,
) -> None:
    # Given a delayed message that the group has not reached
    world.sent("a", deliver_time=104.0)
    world.broker.progress["g"] = {QUEUE: (99, 100)}
    assert world.scheduler.run_once(105.0).rested == 1

    # When the broker gets an older copy of its store, and nobody sends to the topic any more
    world.broker.progress["g"] = {QUEUE: (58, 59)}
    assert world.scheduler.run_once(109.0).rested == 1
    world.broker.progress["g"] = {QUEUE: (59, 59)}

    # Then it is sent as soon as the group has read all that there is
    assert world.scheduler.run_once(113.0).sent == 1


def test_a_delayed_message_is_missed_by_a_group_that_has_read_nothing_of_an_empty_store(
    world: World,
) -> None:
    world.sent("a", deliver_time=104.0)
    world.broker.progress["g"] = {QUEUE: (-1, 0)}

    assert world.scheduler.run_once(105.0).sent == 1
