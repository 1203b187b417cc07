"""Looking at what brokers hold, and handing dead letters back."""

import asyncio

import msgspec
import pytest
from tests.client.cluster import QUICK, Seen, play
from tests.conformance.clusters import Cluster
from tests.waiting import eventually, until

from reliable_mq.client.administering.thread_browser import Browser
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.settling import DEAD_LETTER_REASON
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import NoRoute
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import Reject

SETTINGS = msgspec.structs.replace(QUICK, route_refresh_seconds=1.0)
"""A group's retry topic may come to the second of two brokers when its route is known already."""

DEAD_ID, LIVE_ID = f"{1:032X}", f"{2:032X}"


@pytest.mark.parametrize("ordered", [True, False])
def test_a_dead_letter_is_found_shown_and_comes_to_its_group_again(
    cluster: Cluster, topic: str, group: str, ordered: bool
) -> None:
    letters: list[ReceivedMessage] = []
    others = Seen()

    def look() -> bool:
        with Browser(cluster.name_server_address) as browser:
            found = browser.find(f"%DLQ%{group}", DEAD_ID)
            if not found:
                return False
            assert group in browser.dead_letter_groups()
            assert browser.find(f"%DLQ%{group}", LIVE_ID) == []
            assert browser.find("no-such-topic", DEAD_ID) == []
            letters.extend(browser.messages(f"%DLQ%{group}"))
            (stored,) = browser.find(topic, DEAD_ID)
            assert stored.body == b"poison"
            late = letters[0].store_time_ms + 60_000
            assert list(browser.messages(f"%DLQ%{group}", late)) == []
            browser.redeliver(group, letters[0])
        return True

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=SETTINGS) as client:
            await client.create_topic(topic, 1)
            seen = Seen(Reject("cannot be read"))
            options = {"ordered": ordered, "from_where": "first"}
            wanted = Subscription(group=group, topics={topic: "*"}, **options)  # type: ignore[arg-type]
            await client.consume(wanted, seen)
            await client.consume(Subscription(group=f"{group}-b", topics={topic: "*"}), others)
            await client.send(Message(topic=topic, body=b"poison", message_id=DEAD_ID))
            await eventually(lambda: len(seen.messages) == 1)
            await client.send(Message(topic=topic, body=b"good", message_id=LIVE_ID))
            await eventually(lambda: seen.bodies.count(b"good") == 1)
            await eventually(lambda: asyncio.to_thread(look))
            # it comes again, under its id, and to nobody else
            await eventually(lambda: seen.bodies.count(b"poison") == 2)
            assert seen.messages[-1].message_id == DEAD_ID
            assert seen.messages[-1].topic == topic
            assert others.bodies.count(b"poison") == 1

    play(scene())

    assert [each.message_id for each in letters] == [DEAD_ID]
    assert letters[0].properties[DEAD_LETTER_REASON] == "cannot be read"


def test_every_message_of_a_topic_is_read_once_page_by_page(cluster: Cluster, topic: str) -> None:
    count = 100

    async def scene() -> None:
        async with AsyncClient(cluster.name_server_address, settings=QUICK) as client:
            await client.create_topic(topic, 2)
            await client.send_many(
                [Message(topic=topic, body=b"%d" % number) for number in range(count)]
            )

    play(scene())
    with Browser(cluster.name_server_address) as browser:

        def read() -> list[int]:
            return [int(message.body) for message in browser.messages(topic)]

        until(lambda: len(read()) >= count)  # Apache shows them a moment after it has answered
        assert sorted(read()) == list(range(count))
        with pytest.raises(NoRoute):
            next(browser.messages("no-such-topic"))
