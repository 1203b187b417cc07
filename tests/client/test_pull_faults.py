"""A topic whose pulls fail has one line when it begins, and one when it is read again."""

import logging

import pytest

from reliable_mq.client.consuming.pull_faults import PullFaults
from reliable_mq.errors import (
    InvariantBroken,
    NotFound,
    NotPermitted,
    ProtocolError,
    RemoteError,
)
from reliable_mq.message import MessageQueue

QUEUES = [MessageQueue("orders", "a", number) for number in range(8)]
GONE = NotFound(17, "topic[orders] not exist, apply first please!\nSee https://example.org")


@pytest.fixture
def faults(caplog: pytest.LogCaptureFixture) -> PullFaults:
    caplog.set_level(logging.INFO)
    return PullFaults("payments")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_all_queues_of_a_deleted_topic_have_one_line_for_all_time(
    faults: PullFaults, caplog: pytest.LogCaptureFixture
) -> None:
    for seconds in range(600):
        for queue in QUEUES:
            faults.failed(queue, GONE, float(seconds))
            faults.invariants()

    (line,) = lines(caplog)
    assert "queue 0 of topic orders at a failed: code 17" in line
    assert "\n" not in line, "the text of a peer has several lines, the log has one"


def test_the_return_is_told_when_no_queue_fails_any_more(
    faults: PullFaults, caplog: pytest.LogCaptureFixture
) -> None:
    for queue in QUEUES:
        faults.failed(queue, GONE, 100.0)
    for queue in QUEUES:
        assert len(lines(caplog)) == 1
        faults.works(queue, 160.0)
        faults.invariants()

    assert lines(caplog)[1:] == ["group payments: topic orders is read again after 60 s"]


def test_each_kind_of_fault_has_its_line(
    faults: PullFaults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.failed(QUEUES[0], GONE, 0.0)
    faults.failed(QUEUES[0], NotPermitted(16, "no"), 1.0)
    faults.failed(QUEUES[0], ProtocolError("what?"), 2.0)
    assert len(lines(caplog)) == 3

    faults.works(QUEUES[0], 3.0)
    assert len(lines(caplog)) == 4
    faults.failed(QUEUES[0], GONE, 100.0)
    assert len(lines(caplog)) == 5


def test_a_queue_that_another_member_reads_now_tells_no_return(
    faults: PullFaults, caplog: pytest.LogCaptureFixture
) -> None:
    faults.failed(QUEUES[0], GONE, 0.0)
    faults.left(QUEUES[0])
    faults.invariants()
    assert len(lines(caplog)) == 1

    faults._kinds["orders"] = {"x"}
    with pytest.raises(InvariantBroken):
        faults.invariants()


def test_a_broker_without_our_subscription_is_told_with_the_likely_reason(
    faults: PullFaults, caplog: pytest.LogCaptureFixture
) -> None:
    remark = "the consumer's subscription not exist\nSee https://example.org"
    faults.failed(QUEUES[0], RemoteError(24, remark), 0.0)

    (line,) = lines(caplog)
    assert "code 24: the broker has no subscription of this group to this topic" in line
    assert "probably another application has the same group name" in line
    assert "https" not in line
