"""Which groups a message waits for depends on what is imported: who knows none is told so."""

import logging
from pathlib import Path
from typing import Any

import pytest

from reliable_mq import ReliableMQ
from reliable_mq.errors import UsageError

LOGGER = "reliable_mq.app.declarations"


class Shop:
    """A web process: it sends, and whether it knows of consumers is the test's to say."""

    def __init__(self, directory: Path) -> None:
        self._url = f"sqlite:///{directory / 'shop.db'}"
        self.mq = self.process()
        self.mq.create_tables()

    def process(self, **settings: Any) -> ReliableMQ:
        self.mq = ReliableMQ("shop", database=self._url, relay="shared", **settings)
        return self.mq

    def send(self, topic: str = "orders", **options: Any) -> None:
        with self.mq.transaction() as tx:
            tx.send(topic, {"id": 1}, **options)

    def waited_for(self) -> list[str]:
        with self.mq.database.engine.begin() as connection:
            rows = connection.execute(self.mq.database.stubs.select())
            return [row.required_groups for row in rows]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == LOGGER and record.levelno == logging.WARNING
    ]


def test_a_process_that_knows_no_group_of_a_topic_is_warned_once_for_each_topic(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("orders", "orders", "invoices"):
        shop.send(topic)

    first, second = warnings(caplog)
    assert "topic 'orders': this process knows no consumer group" in first
    assert "mq.topic('orders', groups=[…])" in first
    assert "topic 'invoices'" in second
    assert shop.waited_for() == ["", "", ""]


def test_a_group_that_reads_other_tags_only_is_none_for_this_message(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    @shop.mq.consumer("orders", group="payments", tag="paid")
    def pay(order: dict[str, int]) -> None: ...

    shop.send(tag="paid")
    assert warnings(caplog) == []
    shop.send(tag="placed")

    (line,) = warnings(caplog)
    assert "topic 'orders', tag 'placed'" in line


def test_a_tag_that_no_group_wants_is_told_at_the_first_message_with_it(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a group that is named, and whose handler is known here
    shop.mq.topic("orders", groups=["payments"])

    @shop.mq.consumer("orders", group="payments", tag="placed || paid")
    def pay(order: dict[str, int]) -> None: ...

    for tag in ("placed", "palced", "palced", "padi"):
        shop.send(tag=tag)
    shop.send()

    # Then each tag that it does not want is told once, and waits for nobody
    first, second, third = warnings(caplog)
    assert "topic 'orders', tag 'palced': no consumer group" in first
    assert "payments wants 'placed || paid'" in first
    assert "tag 'padi'" in second
    assert "a message with no tag" in third
    assert shop.waited_for() == ["payments", "", "", "", ""]


def test_a_named_group_whose_handler_is_elsewhere_is_waited_for_whatever_the_tag(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.mq.topic("orders", groups=["payments"])
    shop.send(tag="palced")

    assert warnings(caplog) == []
    assert shop.waited_for() == ["payments"]


def test_that_a_topic_is_declared_says_nothing_of_its_groups(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.mq.topic("orders")
    shop.send()

    assert len(warnings(caplog)) == 1


def test_who_says_that_no_group_is_meant_is_left_alone(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.mq.topic("orders", groups=[])
    shop.send()
    shop.send("invoices", required_groups=())
    shop.mq.topic("payments", groups=["bank"])
    shop.send("payments")
    shop.mq.groups_of("elsewhere")  # a question is no message

    assert warnings(caplog) == []
    assert shop.waited_for() == ["", "", "bank"]


def test_a_message_without_a_known_group_may_be_refused_and_the_transaction_goes_on(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    mq = shop.process(send_without_group="raise")
    mq.topic("known", groups=["bank"])

    with mq.transaction() as tx:
        for _ in range(2):
            with pytest.raises(UsageError, match="topic 'orders': this process knows no consumer"):
                tx.send_many("orders", [{"id": 1}])
        tx.send("known", {"id": 2})

    assert shop.waited_for() == ["bank"]
    assert warnings(caplog) == []


def test_a_message_without_a_known_group_may_pass_in_silence(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.process(send_without_group="allow")
    shop.send()

    assert warnings(caplog) == []


def test_a_group_that_is_declared_after_a_send_counts_from_the_next_send_on(shop: Shop) -> None:
    shop.mq.topic("orders", groups=["payments"])
    shop.send()
    shop.mq.topic("orders", groups=["letters"])
    shop.send()

    @shop.mq.consumer("orders", group="audit")
    def audit(order: dict[str, int]) -> None: ...

    shop.send()

    assert shop.waited_for() == ["payments", "letters,payments", "audit,letters,payments"]


def test_a_group_that_is_declared_while_a_send_asks_is_known_to_the_next_send(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given an import in another thread that declares a group, then no old answer outlives it."""
    declared = shop.mq._declared
    groups_of = declared.groups_of

    def asked(topic: str, tag: str) -> tuple[str, ...]:
        groups = groups_of(topic, tag)
        monkeypatch.undo()
        shop.mq.topic("orders", groups=["letters"])
        return groups

    shop.mq.topic("orders", groups=["payments"])
    monkeypatch.setattr(declared, "groups_of", asked)
    shop.send()
    shop.send()

    assert shop.waited_for() == ["payments", "letters,payments"]


def test_the_groups_of_a_topic_are_asked_for_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    declared = shop.mq._declared
    groups_of = declared.groups_of

    def note(topic: str, tag: str) -> tuple[str, ...]:
        asked.append(topic)
        return groups_of(topic, tag)

    shop.mq.topic("orders", groups=["payments"])
    monkeypatch.setattr(declared, "groups_of", note)
    for _ in range(3):
        shop.send()

    assert asked == ["orders"]
