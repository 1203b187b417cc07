"""Who has a message in flight: places and names, without a broker."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC
from tests.broker_core.pop_world import PopWorld
from tests.reconcile.test_popped_files import written

from reliable_mq.cli.found_pops import HandedOut, StoredAt, entries_of, flying, stored_pops
from reliable_mq.wire.properties import UNIQ_KEY

NOW = datetime(2026, 11, 29, 8, tzinfo=UTC)
EPOCH = datetime.fromtimestamp(0, UTC)


def handed_out(**changes: Any) -> HandedOut:
    made = HandedOut(
        group="mail",
        topic="orders",
        broker="b",
        queue_id=0,
        offset=1,
        attempt=1,
        popped=NOW - timedelta(seconds=5),
        until=NOW + timedelta(seconds=55),
        changes=0,
        is_acknowledged=False,
    )
    return made._replace(**changes)


def test_only_what_is_neither_acknowledged_nor_over_is_in_flight() -> None:
    pops = [
        handed_out(),
        handed_out(group="over", until=NOW - timedelta(seconds=1)),
        handed_out(group="done", is_acknowledged=True),
        handed_out(group="again", changes=2),
    ]
    assert flying(pops, NOW) == ["again", "mail"]
    assert [each.what.rpartition(": ")[0] for each in entries_of(pops[:1], NOW)] == [
        "handed out to mail by the message, attempt 1"
    ]
    told = [each.what for each in entries_of(pops[1:], NOW)]
    assert "not acknowledged until 2026-11-29T07:59:59.000+00:00: it comes back" in told[0]
    assert told[1].endswith(": acknowledged")
    assert ", its time was changed 2 times: in flight, invisible until " in told[2]


@pytest.mark.parametrize("folder", ["store", "a=b"])
def test_a_store_may_have_a_name_and_names_have_no_namespace(tmp_path: Path, folder: str) -> None:
    world = PopWorld()
    world.send(b"one")
    (message,) = world.pop()
    world.stop()
    store = written(world, tmp_path / folder)
    message_id = message.record.property_map()[UNIQ_KEY]
    place = StoredAt("b", TOPIC, 0, 0, 0)

    for text, name in ((store, ""), (f"broker-a={store}", "broker-a")):
        (found,) = stored_pops(message_id, [place], EPOCH, [text])
        assert (found.broker, found.group, found.topic) == (name, GROUP, TOPIC)
    assert stored_pops(message_id, [place._replace(offset=9)], EPOCH, [store]) == []
    (found,) = stored_pops(message_id, [], EPOCH, [store])  # no ledger knows where it lies
    assert found.offset == 0
