"""How many handler calls run at once, and how many messages each gets."""

import pytest

from reliable_mq.client.consuming.asyncio_handler_pool import EAGER, SHORT_SECONDS, HandlerPool
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import ConfigurationError


def pool(*, seconds: float | None = None, series: int = 1, batch: int = 1) -> HandlerPool:
    made = HandlerPool(
        Subscription(group="g", topics={"t": "*"}, concurrency=8, series=series, batch=batch)
    )
    for _ in range(0 if seconds is None else 200):
        made.note_call(seconds or 0.0, 1)
    return made


def test_as_long_as_nothing_is_known_every_message_has_a_worker_task_of_its_own() -> None:
    new = pool(series=8)

    assert (new.wanted(0, is_late=False), new.share(20, 8)) == (8, 1)


def test_short_calls_share_what_is_ready_among_few_worker_tasks() -> None:
    short = pool(series=8, seconds=0.005)

    assert [short.wanted(running, is_late=False) for running in (0, 1, 5)] == [EAGER, EAGER, 5]
    assert [short.share(ready, 2) for ready in (0, 1, 5, 100)] == [1, 1, 3, 8]


def test_a_series_has_fewer_messages_where_each_takes_longer() -> None:
    shares = [pool(series=32, seconds=each).share(1000, 1) for each in (0.001, 0.01, 0.03, 0.045)]

    assert shares == [32, 32, 13, 8]


def test_what_waited_long_gets_all_worker_tasks() -> None:
    assert pool(series=8, seconds=0.005).wanted(2, is_late=True) == 8


def test_one_long_call_ends_series_until_calls_are_short_again() -> None:
    long = pool(series=8, seconds=0.005)
    long.note_call(1.0, 1)
    assert (long.may_take_series, long.share(20, 2)) == (False, 1)

    for _ in range(50):
        long.note_call(0.008, 8)
    assert long.may_take_series


@pytest.mark.parametrize("seconds", [0.0, SHORT_SECONDS])
def test_who_takes_no_series_gets_a_batch_by_every_worker_task(seconds: float) -> None:
    batches = pool(batch=64, seconds=seconds)

    assert (batches.wanted(0, is_late=False), batches.share(20, 8)) == (8, 64)


def test_a_batch_and_a_series_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="series is 8"):
        pool(batch=2, series=8)
