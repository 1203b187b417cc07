"""What the judge lets a master answer to a pull that waits, after its slave was promoted."""

from random import Random

import pytest
from tests.broker_core.broker_world import pull_header
from tests.simulation.asked import Asked
from tests.simulation.facts import Violation
from tests.simulation.kinds import ASKED, JUDGES
from tests.simulation.kinds.pulls import Pull
from tests.simulation.model import Model
from tests.simulation.plan import plan_of
from tests.simulation.waiting import Wait
from tests.simulation.watched_disk import WatchedDisk

from reliable_mq.broker_core.requests.refusal import of_unverified
from reliable_mq.errors import ReliableMQError
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply, request


def _judge(model: Model, answer: Command | None = None, *, is_due: bool = True) -> None:
    """Have the judge look at the answer to a pull that waits: the refusal, or another one."""
    fields = {name: str(value) for name, value in pull_header().items()}
    command = request(RequestCode.PULL_MESSAGE, fields)
    asked = Asked(1, command, Pull(), 0, 0, 0)
    topic, queue_id = fields["topic"], int(fields["queueId"])
    asked.facts = Wait(asked, topic, queue_id, None, 0, must_be_answered=is_due)
    refused = of_unverified()
    Pull().check(model, asked, answer or reply(command, refused.code, refused.remark))


def _model(*, has_rival: bool) -> Model:
    model = Model(JUDGES, plan_of(0, list(ASKED)), WatchedDisk(Random(0), lambda: 0.0))
    model.has_rival = has_rival
    return model


def test_a_fenced_master_may_refuse_a_pull_that_waits() -> None:
    model = _model(has_rival=True)
    model.fenced(is_fenced=True)
    _judge(model)


def test_a_master_that_is_not_fenced_may_not() -> None:
    model = _model(has_rival=True)
    model.fenced(is_fenced=False)
    with pytest.raises(ReliableMQError):
        _judge(model)


@pytest.mark.parametrize(
    ("code", "remark"),
    [(ResponseCode.SYSTEM_BUSY, "busy"), (ResponseCode.SYSTEM_ERROR, of_unverified().remark)],
)
def test_a_fenced_master_may_refuse_in_no_other_way(code: ResponseCode, remark: str) -> None:
    model = _model(has_rival=True)
    model.fenced(is_fenced=True)
    with pytest.raises(ReliableMQError):
        _judge(model, Command(code, remark=remark))


def test_a_fenced_master_answers_a_pull_only_when_it_is_due() -> None:
    model = _model(has_rival=True)
    model.fenced(is_fenced=True)
    with pytest.raises(ReliableMQError):
        _judge(model, is_due=False)


def test_a_master_is_fenced_only_when_another_one_was_promoted() -> None:
    model = _model(has_rival=False)
    with pytest.raises(Violation, match="nobody else was promoted"):
        model.fenced(is_fenced=True)
