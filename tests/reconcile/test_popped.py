"""What is in flight by the message, from the checkpoints and acknowledgements in a log alone."""

import json
from typing import Any

import pytest

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.reconcile.brokers.popped import (
    INVISIBLE_MS_MAX,
    PopOf,
    in_flight,
    not_beyond,
    oldest_open,
    open_notes,
    pops_of,
)

NOW = 1_800_000_000_000


def note(tag: str, **fields: Any) -> tuple[str, bytes]:
    named = {"c": "payments", "t": "orders", "q": 2, "so": 100, "pt": NOW - 5_000}
    return tag, json.dumps(named | fields).encode()


def checkpoint(count: int = 3, **fields: Any) -> tuple[str, bytes]:
    return note("ck", **{"n": count, "it": 60_000, "d": list(range(count))} | fields)


def test_a_checkpoint_without_acknowledgements_is_in_flight_from_its_start() -> None:
    assert in_flight([checkpoint()], NOW, NOW) == {("payments", "orders"): {2: 100}}


def test_acknowledgements_in_any_order_leave_the_first_that_is_missing() -> None:
    notes = [note("bAck", aol=[100, 102], ao=-1), checkpoint(), note("ack", ao=104)]
    assert in_flight(notes, NOW, NOW) == {("payments", "orders"): {2: 101}}


def test_what_is_all_acknowledged_is_not_in_flight() -> None:
    notes = [checkpoint(), *(note("ack", ao=offset) for offset in (102, 100, 101))]
    assert in_flight(notes, NOW, NOW) == {}


@pytest.mark.parametrize(("popped_ms_ago", "flies"), [(119_000, True), (121_000, False)])
def test_a_checkpoint_counts_until_its_time_and_some_delay_are_over(
    popped_ms_ago: int, flies: bool
) -> None:
    found = in_flight([checkpoint(pt=NOW - popped_ms_ago)], NOW, NOW)
    assert bool(found) is flies


@pytest.mark.parametrize(
    ("newest_ms", "flies"),
    [
        pytest.param(NOW - 3_600_001, True, id="down since before its time"),
        pytest.param(NOW - 3_600_000, False, id="up at its time"),
        pytest.param(NOW, False, id="up now"),
    ],
)
def test_a_checkpoint_is_not_over_while_its_broker_is_down(newest_ms: int, flies: bool) -> None:
    found = in_flight([checkpoint(pt=NOW - 3_660_000)], NOW, newest_ms)
    assert bool(found) is flies


def test_checkpoints_are_looked_for_as_far_back_as_a_broker_lets_messages_be_invisible() -> None:
    assert INVISIBLE_MS_MAX == BrokerConfig().timer_seconds_max * 1000 == 72 * 3_600_000


def test_an_acknowledgement_of_another_pop_ends_nothing() -> None:
    notes = [checkpoint(1), note("ack", ao=100, pt=NOW - 90_000), note("ack", ao=100, c="other")]
    assert in_flight(notes, NOW, NOW) == {("payments", "orders"): {2: 100}}


def test_offsets_with_gaps_and_older_checkpoints_without_differences_are_read() -> None:
    gaps = [checkpoint(d=[0, 5, 9]), note("bAck", aol=[100, 105], ao=-1)]
    assert in_flight(gaps, NOW, NOW) == {("payments", "orders"): {2: 109}}
    old = [checkpoint(d=None), note("ack", ao=100)]
    assert in_flight(old, NOW, NOW) == {("payments", "orders"): {2: 101}}


def test_of_several_checkpoints_the_lowest_counts_and_retries_have_their_own_topic() -> None:
    retry = "%RETRY%payments_orders"
    notes = [checkpoint(so=200), checkpoint(so=150), checkpoint(t=retry, q=0, so=7)]
    assert in_flight(notes, NOW, NOW) == {
        ("payments", "orders"): {2: 150},
        ("payments", retry): {0: 7},
    }


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"no JSON", b'{"c":1}', b'{"c":"g","t":"t","q":0,"so":"x","pt":[]}']
)
@pytest.mark.parametrize("tag", ["ck", "ack", "bAck"])
def test_a_note_that_cannot_be_read_says_nothing(tag: str, body: bytes) -> None:
    assert in_flight([(tag, body), checkpoint(1)], NOW, NOW) == {("payments", "orders"): {2: 100}}


def test_committed_offsets_are_not_beyond_what_is_in_flight() -> None:
    progress = {("payments", "orders"): {1: 50, 2: 130}, ("mail", "orders"): {2: 130}}
    flying = {("payments", "orders"): {2: 100, 3: 4}, ("stock", "orders"): {0: 1}}

    assert not_beyond(progress, flying) == {
        ("payments", "orders"): {1: 50, 2: 100, 3: 4},
        ("mail", "orders"): {2: 130},
        ("stock", "orders"): {0: 1},
    }
    assert not_beyond({("g", "t"): {0: 3}}, {("g", "t"): {0: 9}}) == {("g", "t"): {0: 3}}


def test_each_hand_out_of_a_message_is_told_in_the_order_of_time() -> None:
    notes = [
        checkpoint(c="mail", so=99, pt=NOW - 1_000),
        note("ack", ao=101),
        checkpoint(),
        checkpoint(t="other"),
    ]
    found = pops_of(notes, lambda *place: place == ("orders", 2, 101))

    assert found == [
        PopOf("payments", "orders", 2, 101, NOW - 5_000, NOW + 55_000, True),
        PopOf("mail", "orders", 2, 101, NOW - 1_000, NOW + 59_000, False),
    ]


def test_the_oldest_checkpoint_whose_time_is_not_over_is_found() -> None:
    over = checkpoint(pt=NOW - 10_000_000)
    assert oldest_open([over], NOW, NOW) is None
    assert oldest_open([over, checkpoint(), checkpoint(pt=NOW)], NOW, NOW) == NOW - 5_000
    assert oldest_open([over], NOW, 0) == NOW - 10_000_000  # it may not have come back yet


def test_checkpoints_that_are_over_are_not_kept() -> None:
    over = checkpoint(pt=NOW - 10_000_000)
    notes = [over, checkpoint(), note("ack", ao=100), ("ck", b"spoilt")]
    assert list(open_notes(notes, NOW, NOW)) == notes[1:3]
