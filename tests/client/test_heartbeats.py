"""Heartbeats: in full at first, in short to a broker that has shown that it knows the rest."""

from typing import Any

from tests.client.script import World, group_of

from reliable_mq.client.connecting.heartbeats import Heartbeats, fingerprint_of
from reliable_mq.client.connecting.membership import ConsumerData, consumer_data
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply

BROKER = "a:10911"
KNOWN = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}
CHANGED = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}


def said(command: Command) -> Any:
    return fastjson.loads(command.body)


def reader(name: str, version: int = 1) -> ConsumerData:
    topic = {"topic": "t", "subString": "*", "subVersion": version}
    return {"groupName": name, "subscriptionDataSet": [topic]}


def test_a_heartbeat_says_what_apaches_broker_wants_to_hear() -> None:
    world = World()
    subscription = Subscription(group="g", topics={"t": "TagA || TagB", "u": "*"})
    group = group_of(world, subscription, queues={"a": 1})
    beat = said(Heartbeats("me", in_short=False).command(BROKER, ["p"], [consumer_data(group)]))
    assert beat["clientID"] == "me"
    assert beat["producerDataSet"] == [{"groupName": "p"}]
    (consumer,) = beat["consumerDataSet"]
    assert consumer["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert (consumer["consumeType"], consumer["messageModel"]) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
    )
    by_topic = {item["topic"]: item for item in consumer["subscriptionDataSet"]}
    assert by_topic.keys() == {"t", "u", "%RETRY%g"}
    assert by_topic["t"]["tagsSet"] == ["TagA", "TagB"]
    assert by_topic["t"]["codeSet"] == [2598919, 2598920]
    assert by_topic["t"]["subString"] == "TagA || TagB"
    assert by_topic["u"]["subString"] == by_topic["%RETRY%g"]["subString"] == "*"


def test_a_broker_that_knows_our_subscriptions_is_told_without_them() -> None:
    beats = Heartbeats("me", in_short=True)
    lengths = []
    for ext in (CHANGED, KNOWN, KNOWN, KNOWN):
        command = beats.command(BROKER, ["p"], [reader("g")])
        body = said(command)
        assert body["heartbeatFingerprint"] > 0
        lengths.append((body["withoutSub"], len(body["consumerDataSet"][0]["subscriptionDataSet"])))
        beats.answered(BROKER, reply(command, ext=ext))
    assert lengths == [(False, 1), (False, 1), (True, 0), (True, 0)]


def test_everything_is_said_again_to_a_new_connection_and_after_every_doubt() -> None:
    for doubt in ("lost", "refused", "sub changed", "old broker", "another group", "garbage"):
        beats = Heartbeats("me", in_short=True)
        command = beats.command(BROKER, [], [reader("g")])
        beats.answered(BROKER, reply(command, ext=KNOWN))
        assert said(beats.command(BROKER, [], [reader("g")]))["withoutSub"]
        consumers = [reader("g")]
        if doubt == "lost":
            beats.forget(BROKER)
            beats.answered(BROKER, reply(command, ext=KNOWN))  # of the connection before
        elif doubt == "refused":
            beats.answered(BROKER, reply(command, ResponseCode.SYSTEM_ERROR, ext=KNOWN))
        elif doubt == "sub changed":
            beats.answered(BROKER, reply(command, ext=CHANGED))
        elif doubt == "old broker":
            beats.answered(BROKER, reply(command))
        elif doubt == "garbage":
            beats.answered(BROKER, reply(command, ext={"IS_SUB_CHANGE": "0"}))
        else:
            consumers.append(reader("h"))
        assert not said(beats.command(BROKER, [], consumers))["withoutSub"], doubt


def test_the_answer_to_an_earlier_heartbeat_says_nothing_of_a_group_that_has_come_since() -> None:
    beats = Heartbeats("me", in_short=True)
    earlier = beats.command(BROKER, [], [reader("g")])
    later = beats.command(BROKER, [], [reader("g"), reader("h")])
    earlier.opaque, later.opaque = 1, 2  # as the connection numbers them
    beats.answered(BROKER, reply(earlier, ext=KNOWN))
    assert not said(beats.command(BROKER, [], [reader("g"), reader("h")]))["withoutSub"]


def test_each_broker_is_told_for_itself() -> None:
    beats = Heartbeats("me", in_short=True)
    beats.answered(BROKER, reply(beats.command(BROKER, [], [reader("g")]), ext=KNOWN))
    assert not said(beats.command("b:10911", [], [reader("g")]))["withoutSub"]


def test_members_that_are_alike_have_one_fingerprint_and_others_another() -> None:
    one = fingerprint_of([], [reader("g", version=1)])
    assert one == fingerprint_of([], [reader("g", version=2)]), "each member has its own version"
    assert one != fingerprint_of([], [reader("h")])
    assert one != fingerprint_of([{"groupName": "p"}], [reader("g")])


def test_the_version_of_a_broker_is_that_of_its_last_answer() -> None:
    beats = Heartbeats("me", in_short=True)
    assert beats.version_of(BROKER) is None
    answer = reply(beats.command(BROKER, [], []))
    beats.answered(BROKER, answer)
    assert beats.version_of(BROKER) == answer.version


def test_brokers_that_no_route_names_any_more_are_forgotten() -> None:
    beats = Heartbeats("me", in_short=True)
    for address in ("gone:1", BROKER):
        command = beats.command(address, ["p"], [reader("g")])
        beats.answered(address, reply(command, ext=KNOWN))
    beats.command("never-there:1", ["p"], [])
    beats.forget_except({BROKER})
    assert beats._sent.keys() == beats._understood.keys() == beats._versions.keys() == {BROKER}
