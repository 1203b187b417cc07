"""Pulls by SQL92: what is refused, what comes at once, and what wakes a pull that waits."""

from collections.abc import Iterator

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    pull_header,
    there,
    waiting_pull_header,
)

from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command
from reliable_mq.wire.record import iter_records

DEAR = "price >= 50"


@pytest.fixture
def world() -> Iterator[BrokerWorld]:
    """Give a broker that filters by properties."""
    world = BrokerWorld(enablePropertyFilter="true")
    yield world
    world.state.pulls.invariants()
    world.state.clients.invariants()


def pull(world: BrokerWorld, offset: int = 0, text: str = DEAR, **changes: object) -> Command:
    header = pull_header(offset, **{"subscription": text, "expressionType": "SQL92", **changes})
    return world.ask(Ask.PULL_MESSAGE, header)


def wait(world: BrokerWorld, offset: int, text: str = DEAR) -> int:
    """Begin a pull that is held; return its opaque."""
    header = waiting_pull_header(offset, subscription=text, expressionType="SQL92")
    assert world.begin(Ask.PULL_MESSAGE, header) is None
    return world.last_opaque


def send_prices(world: BrokerWorld, *prices: int) -> None:
    for price in prices:
        world.send(b"%d" % price, price=str(price))


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in iter_records(answer.body)]


def subscribe(world: BrokerWorld, text: str, version: int = 1, kind: str = "SQL92") -> None:
    wanted = {
        "topic": TOPIC,
        "subString": text,
        "expressionType": kind,
        "subVersion": version,
    }
    world.subscribe(subscriptionDataSet=[wanted])


def registered_pull(world: BrokerWorld, version: int = 0) -> Command:
    return world.ask(Ask.PULL_MESSAGE, pull_header(0, sysFlag=0, subVersion=version))


def test_only_wanted_messages_come_and_the_next_pull_begins_behind_what_was_seen(
    world: BrokerWorld,
) -> None:
    world.create_topic()
    send_prices(world, 10, 60, 20, 70, 30)

    found = pull(world)
    assert (found.code, bodies(found)) == (Code.SUCCESS, [b"60", b"70"])
    assert found.ext_fields["nextBeginOffset"] == "5"

    first = pull(world, maxMsgNums=1)
    assert (bodies(first), first.ext_fields["nextBeginOffset"]) == ([b"60"], "2")

    none = pull(world, 4)
    assert (none.code, none.remark) == (Code.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert none.ext_fields["nextBeginOffset"] == "5"


def test_one_pull_looks_at_no_more_than_800_messages(world: BrokerWorld) -> None:
    world.create_topic()
    send_prices(world, *([1] * 805), 60)
    first = pull(world)
    assert (first.code, first.ext_fields["nextBeginOffset"]) == (20, "800")
    assert bodies(pull(world, 800)) == [b"60"]


def test_a_waiting_pull_is_woken_by_a_wanted_message_only(world: BrokerWorld) -> None:
    world.create_topic()
    opaque = wait(world, 0)
    send_prices(world, 10, 20)
    assert world.reply_to(opaque) is None

    send_prices(world, 60)
    answer = world.reply_to(opaque)
    assert answer is not None
    assert bodies(answer) == [b"60"]
    assert len(world.state.pulls) == 0


def test_each_of_many_waiting_filters_judges_for_itself(world: BrokerWorld) -> None:
    world.create_topic()
    dear, cheap = wait(world, 0), wait(world, 0, "price < 50")
    assert world.begin(Ask.PULL_MESSAGE, waiting_pull_header(0)) is None
    all_of_them = world.last_opaque
    send_prices(world, 10)
    assert world.reply_to(dear) is None
    assert world.reply_to(cheap) is not None
    assert world.reply_to(all_of_them) is not None


def test_a_pull_that_found_nothing_in_time_is_told_how_far_it_has_come(world: BrokerWorld) -> None:
    world.create_topic()
    opaque = wait(world, 0)
    send_prices(world, 10, 20)
    world.pass_time(16_000, step=4_000)
    answer = world.reply_to(opaque)
    assert answer is not None
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "2")


def test_a_group_pulls_by_the_expression_of_its_heartbeat(world: BrokerWorld) -> None:
    world.create_topic()
    send_prices(world, 10, 60)
    subscribe(world, DEAR)
    assert bodies(registered_pull(world)) == [b"60"]

    subscribe(world, "price < 50", version=1)
    assert bodies(registered_pull(world)) == [b"60"], "the version is no newer"
    subscribe(world, "price < 50", version=2)
    assert bodies(registered_pull(world, version=2)) == [b"10"]
    assert registered_pull(world, version=3).code == Code.SUBSCRIPTION_NOT_LATEST
    subscribe(world, "*", version=3, kind="TAG")
    assert bodies(registered_pull(world)) == [b"10", b"60"]


def test_a_group_whose_expression_does_not_read_gets_nothing(world: BrokerWorld) -> None:
    world.create_topic()
    send_prices(world, 60)
    subscribe(world, DEAR)
    for version, (text, kind) in enumerate([("price >", "SQL92"), ("", "SQL92"), (DEAR, "SQL")]):
        subscribe(world, text, version + 2, kind)
        refused = registered_pull(world)
        assert refused.code == Code.FILTER_DATA_NOT_EXIST
        assert "Your expression may be wrong!" in str(refused.remark)


@pytest.mark.parametrize(("text", "kind"), [("price >", "SQL92"), ("", "SQL92"), (DEAR, "SQL")])
def test_a_pull_whose_own_expression_does_not_read_is_refused(
    world: BrokerWorld, text: str, kind: str
) -> None:
    world.create_topic()
    send_prices(world, 60)
    refused = pull(world, text=text, expressionType=kind)
    assert refused.code == Code.SUBSCRIPTION_PARSE_FAILED


def check(world: BrokerWorld, text: str, kind: str = "SQL92") -> Command:
    wanted = {"topic": TOPIC, "subString": text, "expressionType": kind}
    body = {"clientId": "c", "group": GROUP, "subscriptionData": wanted}
    return world.ask(Ask.CHECK_CLIENT_CONFIG, {}, fastjson.dumps(body))


def test_a_client_is_told_at_its_start_whether_its_expression_reads(world: BrokerWorld) -> None:
    assert check(world, DEAR).code == Code.SUCCESS
    assert check(world, "a || b", "TAG").code == Code.SUCCESS
    refused = check(world, "price >")
    assert refused.code == Code.SUBSCRIPTION_PARSE_FAILED
    assert 'Encountered "<EOF>" at line 1, column 7' in str(refused.remark)
    assert check(world, DEAR, "SQL").code == Code.SUBSCRIPTION_PARSE_FAILED


def test_no_filter_but_tags_is_taken_unless_the_broker_is_told_so() -> None:
    world = BrokerWorld()
    world.create_topic()
    send_prices(world, 60)
    subscribe(world, DEAR)
    for refused in (check(world, DEAR), pull(world), registered_pull(world)):
        assert refused.code == Code.SYSTEM_ERROR
        assert refused.remark == ("The broker does not support consumer to filter message by SQL92")


def test_a_record_that_cannot_be_read_is_stepped_over(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.create_topic()
    send_prices(world, 60, 70)
    first = there(world.state.store.queue(TOPIC, 0)).unit(0)
    _, segment = world.state.store.log.segment_at(first.commit_log_offset)
    segment.write(first.commit_log_offset, [bytes(first.size)])
    for _ in range(2):
        assert bodies(pull(world)) == [b"70"]
    assert caplog.text.count(f"(log offset {first.commit_log_offset})") == 1
