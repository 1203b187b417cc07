"""Signed messages: what nobody of us sent has no effect, and suppresses nothing."""

import logging
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from tests.app.test_signed_properties import came

from reliable_mq import ReliableMQ
from reliable_mq.app.connection_checks import warn_unsigned
from reliable_mq.client.observing.middleware import Middleware, Sending
from reliable_mq.client.sending.outgoing import extra_properties
from reliable_mq.errors import ConfigurationError, MessageRefused
from reliable_mq.message import (
    CONFIRM_TO,
    CONSUMED_BY,
    RESENT,
    SIGNATURE,
    Message,
    MessageQueue,
    ReceivedMessage,
)
from reliable_mq.message_checks import properties_of
from reliable_mq.message_digest import RESERVED
from reliable_mq.outbox.stub import Stub, message_of
from reliable_mq.settings import Settings, load_settings
from reliable_mq.signature import NAME_LENGTH_MAX, signer_of
from reliable_mq.testing.memory_client import MemoryClient
from reliable_mq.testing.message_world import MessageWorld
from reliable_mq.wire.properties import decode_properties

NEW, OLD = "2026:" + "n" * 24, "2025:" + "o" * 24
ID = "A" * 32
_numbers = count(10_000)


class Shop:
    """One application that sends and consumes orders."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.mq = mq = ReliableMQ("shop", database=url, **settings)
        mq.create_tables()
        self.taken: list[int] = []
        self.failures = 0

        @mq.consumer("orders", group="payments")
        def take(order: dict[str, int]) -> None:
            if self.failures:
                self.failures -= 1
                raise OSError("not now")
            self.taken.append(order["id"])

    def place(self, number: int, **options: Any) -> None:
        with self.mq.transaction() as tx:
            tx.send("orders", {"id": number}, message_id=ID, **options)

    def rows(self) -> int:
        logs = self.mq.database.logs
        with self.mq.database.engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(logs)).scalar_one()


@pytest.fixture
def shop_of(database_url: str) -> Iterator[Callable[..., Shop]]:
    made: list[Shop] = []

    def make(**settings: Any) -> Shop:
        made.append(Shop(database_url, **settings))
        return made[-1]

    yield make
    for each in made:
        each.mq.close()


def sent_aside(world: MessageWorld, message: Message) -> None:
    """Send a message as somebody does who can reach the broker, and has no key."""
    client = MemoryClient(
        *(world.broker, world.clock, world.faults),
        number=next(_numbers),
        producer_group="stranger",
    )
    world.mq._connections.loop_thread.run(client.send(message))


def forged(number: int = 666, **more: Any) -> Message:
    return Message(topic="orders", body=b'{"id": %d}' % number, message_id=ID, **more)


def test_a_forged_body_under_a_waiting_id_has_no_effect_and_the_real_one_has(
    shop_of: Callable[..., Shop],
) -> None:
    """Given a forged body under the id of a message that waits, when both are delivered, the forged
    one first, then the real one has its effect and the forged one is a dead letter."""
    shop = shop_of(signing_keys=NEW)
    with MessageWorld(shop.mq) as world:
        sent_aside(world, forged())
        world.deliver()
        assert (shop.taken, shop.rows()) == ([], 0)

        shop.place(7)
        world.deliver()

        (letter,) = world.dead_letters("payments")
        assert letter.body == forged().body
        assert "refused: it has no signature" in letter.properties["DEAD_LETTER_REASON"]
        assert SIGNATURE not in letter.properties  # our consumer sent it there, and signs no copy
    assert shop.taken == [7]


def test_without_keys_the_forged_one_takes_the_place_of_the_real_one(
    shop_of: Callable[..., Shop],
) -> None:
    """Given no keys, then what the signature is for happens: this is what the warning says."""
    shop = shop_of()
    with MessageWorld(shop.mq) as world:
        sent_aside(world, forged())
        world.deliver()
        shop.place(7)
        world.deliver()

    assert shop.taken == [666]


@pytest.mark.parametrize(
    "change",
    [
        {"body": b'{"id": 8}'},
        {"tag": "other"},
        {"keys": ("8",)},
        {"ordering_key": "carol"},
        {"properties": {"is_admin": "1"}},
        {"properties": {CONSUMED_BY: "1:payments"}},
        {"message_id": "B" * 32},
    ],
)
def test_a_signature_fits_no_other_message(
    shop_of: Callable[..., Shop], change: dict[str, Any]
) -> None:
    """Given a signed message that somebody has read, when he sends it with a change, then it is
    refused."""
    shop = shop_of(signing_keys=NEW)
    with MessageWorld(shop.mq) as world:
        shop.place(7)
        world.deliver()
        (seen,) = world.sent("orders")
        own = {SIGNATURE: seen.properties[SIGNATURE], "CONTENT_TYPE": "application/json"}
        same: dict[str, Any] = {"topic": "orders", "body": seen.body, "message_id": ID}
        properties = {**own, **change.pop("properties", {})}

        sent_aside(world, Message(**{**same, **change}, properties=properties))
        world.deliver()

        (letter,) = world.dead_letters("payments")
        assert "its signature is of another message" in letter.properties["DEAD_LETTER_REASON"]
    assert shop.taken == [7]


def test_the_longest_properties_leave_room_for_the_longest_signature(
    shop_of: Callable[..., Shop],
) -> None:
    """Given keys with the longest name, when properties are as long as a transaction takes them,
    then the message is signed, tried again and has its effect."""
    shop = shop_of(signing_keys="n" * NAME_LENGTH_MAX + ":" + "s" * 24)
    with MessageWorld(shop.mq) as world:
        with pytest.raises(MessageRefused, match=r"have \d+ bytes, \d+ are allowed") as told:
            shop.place(7, properties={"a": "x" * 32_000})
        size, allowed = map(int, re.findall(r"\d+", str(told.value)))
        shop.failures = 2
        shop.place(7, properties={"a": "x" * (32_000 - (size - allowed))})
        world.advance(hours=1)

    assert shop.taken == [7]


def test_a_resend_is_known_by_its_signature() -> None:
    """Given a stub that is sent again, with all that a resend says, then its message passes, and
    does not when somebody changes what it says."""
    signer = signer_of(NEW)
    assert signer is not None
    again = message_of(
        Stub(
            seq=1,
            message_id=ID,
            topic="orders",
            content=b"{}",
            tag="paid",
            message_key="7",
            required_groups=("payments",),
        ),
        is_missed=True,
        confirm_to="rmq_notices_0",
        consumed_by=["points"],
    )
    stored = decode_properties(properties_of(signer.signed(again)))

    assert signer.fault_of(came(stored)) == ""
    for name in (RESENT, CONSUMED_BY, CONFIRM_TO):
        changed = {**stored, name: "1:payments"}
        assert signer.fault_of(came(changed)) == "its signature is of another message"


def test_a_name_that_brokers_write_is_no_name_for_a_senders_property(tmp_path: Path) -> None:
    """What a broker writes over is lost, and what no signature covers can be changed."""
    mq = Shop(f"sqlite:///{tmp_path}/shop.db").mq
    for name in sorted(RESERVED):
        with pytest.raises(MessageRefused, match=f"property {re.escape(name)} is written by"):
            mq.producer.send("notes", {}, properties={name: "1"})
        with pytest.raises(MessageRefused, match="use another name"), mq.transaction() as tx:
            tx.send("orders", {}, properties={name: "1"})
    mq.close()


def test_a_message_without_a_stub_leaves_room_for_a_signature_too(tmp_path: Path) -> None:
    mq = Shop(f"sqlite:///{tmp_path}/shop.db", signing_keys=NEW).mq
    with pytest.raises(MessageRefused, match=r"the properties have \d+ bytes, 31743 are allowed"):
        mq.producer.send("notes", {"id": 1}, properties={"a": "x" * 32_000})
    mq.close()


class AddsMuch(Middleware):
    """Makes properties so long that no signature fits."""

    def before_send(self, sending: Sending) -> None:
        sending.messages = [
            extra_properties(each, {"a": "x" * 32_680}) for each in sending.messages
        ]


def test_what_a_signature_makes_too_long_is_refused_and_not_sent_unsigned(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", signing_keys=NEW, middleware=[AddsMuch()])
    with MessageWorld(shop.mq) as world:
        client = world.mq._connections.client
        with pytest.raises(MessageRefused, match="properties"):
            world.mq._connections.loop_thread.run(client.send(forged(1)))
        (outcome,) = world.mq._connections.send_many([forged(2)])

        assert isinstance(outcome, MessageRefused)
        assert world.sent("orders") == []
    shop.mq.close()


def test_of_one_batch_only_the_forged_ones_are_refused(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of(signing_keys=NEW)
    seen: list[int] = []

    @shop.mq.consumer("orders", group="points", batch=8)
    def count_points(order: dict[str, int]) -> None:
        seen.append(order["id"])

    with MessageWorld(shop.mq) as world:
        for number in range(4):
            with shop.mq.transaction() as tx:
                tx.send("orders", {"id": number})
            sent_aside(world, Message(topic="orders", body=b'{"id": 666}'))
        world.deliver()

        assert len(world.dead_letters("points")) == 4
    assert sorted(seen) == [0, 1, 2, 3]


def test_keys_are_changed_without_a_refused_message(shop_of: Callable[..., Shop]) -> None:
    """Given messages signed by the old key, when the new one signs and the old one stays known,
    then all are taken; when it is known no more, then its messages are refused."""
    old = shop_of(signing_keys=OLD)
    with MessageWorld(old.mq) as world:
        old.place(1)
        world.mq._connections.send_in_hand()  # type: ignore[attr-defined]
        (seen,) = world.sent("orders")
    copy = Message(
        topic="orders",
        body=seen.body,
        message_id=ID,
        properties={
            name: value
            for name, value in seen.properties.items()
            if name in (SIGNATURE, "CONTENT_TYPE", "CONFIRM_TO")
        },
    )
    for keys, taken in ((f"{NEW},{OLD}", [1]), (NEW, [])):
        shop = shop_of(signing_keys=keys)
        with MessageWorld(shop.mq) as world, shop.mq.database.engine.begin() as connection:
            connection.execute(shop.mq.database.logs.delete())
            connection.commit()
            sent_aside(world, copy)
            world.deliver()
            assert len(world.dead_letters("payments")) == 1 - len(taken)
        assert shop.taken == taken


def test_while_signatures_are_introduced_only_a_wrong_one_is_refused(
    shop_of: Callable[..., Shop],
) -> None:
    shop = shop_of(signing_keys=NEW, signing_required=False)
    with MessageWorld(shop.mq) as world:
        sent_aside(world, forged(1))
        sent_aside(world, forged(2, properties={SIGNATURE: "2026:AAAA"}))
        world.deliver()

        assert len(world.dead_letters("payments")) == 1
    assert shop.taken == [1]


def test_what_does_not_unpack_is_refused_before_it_is_noted_at_the_stub() -> None:
    """Given a body that nobody can unpack, when its signature is asked for, then it is refused: a
    dead letter in the tables would be that of the message whose id it has."""
    signer = signer_of(NEW)
    assert signer is not None
    packed = ReceivedMessage(
        topic="orders",
        body=b"?",
        queue=MessageQueue("orders", "broker-a", 0),
        queue_offset=0,
        properties={SIGNATURE: "2026:x"},
        fault="it is no zlib",
    )

    assert signer.fault_of(packed) == "its signature cannot be checked: it is no zlib"


@pytest.mark.parametrize(
    "keys",
    ["secret-without-a-name", "a:short", f"{NEW},{NEW}", "a:" + "s" * 20 + ",", "a b:" + "s" * 20],
)
def test_keys_that_do_not_read_are_refused_and_not_told(keys: str) -> None:
    with pytest.raises(ConfigurationError, match="setting signing_keys: key") as told:
        load_settings(signing_keys=keys)

    assert "ssss" not in str(told.value)
    assert "nnnn" not in str(told.value)


@pytest.mark.parametrize(
    ("broker", "keys", "is_told"),
    [
        ("10.0.0.5:9876", "", True),
        ("127.0.0.1:9876;mq.example:9876", "", True),
        ("10.0.0.5:9876", NEW, False),
        ("127.0.0.1:9876;localhost:9877;[::1]:9876;[::ffff:127.0.0.1]:1", "", False),
        ("embedded:store", "", False),
    ],
)
def test_unsigned_messages_to_a_broker_elsewhere_are_warned_of(
    broker: str, keys: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_unsigned(Settings(broker=broker, signing_keys=keys))

    assert ("not signed" in caplog.text) is is_told
