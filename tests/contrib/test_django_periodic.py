"""`@mq.periodic` with the Django ORM: rows, messages and the row of the tick are one commit."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection
from sqlalchemy import select
from tests.contrib.django_project import project, set_up
from tests.contrib.test_django_consumers import _deadlock

from reliable_mq.contrib.django.application import DjangoMQ

set_up()

from tests.contrib.django_shop.models import Order  # noqa: E402 - after the settings


@pytest.fixture
def mq(database_url: str) -> Iterator[DjangoMQ]:
    with project(database_url) as made:
        yield made


def test_a_tick_has_its_rows_and_its_messages_or_nothing(
    mq: DjangoMQ, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = [ValueError("once"), OperationalError("deadlock")]
    errors[1].__cause__ = _deadlock()

    @mq.periodic("* * * * * *", topic="counted", database="default", required_groups=())
    def count() -> dict[str, Any]:
        Order.objects.create(item="tea")
        mq.send("extra", {}, required_groups=())
        if errors:
            raise errors.pop(0)
        return {"orders": Order.objects.count(), "in a block": connection.in_atomic_block}

    sender, now = mq._life.periodic_senders()["main"], time.time()
    counts = [sender.run_once(now + 100.0 * each) for each in range(4)]

    assert [(each.failed, each.ticks) for each in counts[1:]] == [(1, 0), (1, 0), (0, 1)]
    assert f": {_deadlock()}" in caplog.text, "the driver's words"
    assert "OperationalError: deadlock" not in caplog.text
    with mq.database.reading_engine.connect() as other:
        stubs = mq.database.stubs.c
        found = dict(other.execute(select(stubs.topic, stubs.content)).all())
    assert found.keys() == {"extra", "counted"}
    assert found["counted"] == b'{"orders":1,"in a block":true}'
    assert Order.objects.count() == 1
