"""What holds for every request: refusals change nothing, one-way means no answer, bugs stay put."""

import logging

import pytest
from tests.broker_core.broker_world import TOPIC, BrokerWorld, pull_header, send_header
from tests.broker_core.probes.script import SCRIPT

from reliable_mq.broker_core.requests import handlers
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.record import decode_record


def roomy_world() -> BrokerWorld:
    return BrokerWorld(maxMessageSize=str(4 << 20), mappedFileSizeCommitLog=str(16 << 20))


def test_every_probe_is_answered_and_what_is_refused_stores_nothing() -> None:
    world = roomy_world()
    for probe in SCRIPT:
        end = world.state.store.log.end
        answer = world.ask(probe.code, probe.ext, probe.body)
        if answer.code != Code.SUCCESS:
            assert world.state.store.log.end == end, probe.name
            assert answer.remark, probe.name
    world.state.store.invariants()


def test_a_one_way_request_gets_no_answer() -> None:
    world = roomy_world()
    for probe in SCRIPT:
        assert world.begin(probe.code, probe.ext, probe.body, oneway=True) is None, probe.name
    world.pass_time(20_000, step=1_000)
    assert not [command for command in world.inbox.get(1, []) if command.is_reply]


def test_a_reply_that_nobody_asked_for_is_not_answered(world: BrokerWorld) -> None:
    from tests.broker_core.broker_world import connection

    from reliable_mq.wire.command import reply, request

    world.core.receive(connection(1), reply(request(Ask.PULL_MESSAGE)), world.now_ms)
    world.finish_turn()

    assert not world.inbox


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (Ask.PULL_MESSAGE, {**pull_header(), "queueOffset": "x"}),
        (Ask.PULL_MESSAGE, {**pull_header(), "queueOffset": None}),
        (Ask.SEND_MESSAGE_V2, {**send_header(), "e": "1.5"}),
        (Ask.CONSUMER_SEND_MSG_BACK, {"group": "g"}),
        (Ask.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": TOPIC}),
        (Ask.GET_MAX_OFFSET, {"Topic": TOPIC, "QueueId": 0}),
        (Ask.VIEW_MESSAGE_BY_ID, {}),
        (Ask.UPDATE_AND_CREATE_TOPIC, {"topic": TOPIC}),
    ],
)
def test_a_header_that_does_not_read_is_an_error_of_its_own_request(
    world: BrokerWorld, code: int, header: dict[str, object]
) -> None:
    assert world.ask(code, header).code == Code.SYSTEM_ERROR


def test_a_bug_takes_nobody_with_it(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(handlers.HANDLERS, Ask.GET_MAX_OFFSET, broken)

    with caplog.at_level(logging.ERROR):
        answer = world.ask(Ask.GET_MAX_OFFSET, {})

    assert (answer.code, answer.remark) == (Code.SYSTEM_ERROR, "ZeroDivisionError: a bug")
    assert "request 30 of 10.0.0.1:1 failed" in caplog.text
    assert world.ask(Ask.GET_MIN_OFFSET, {"topic": TOPIC, "queueId": 0}).code == Code.SUCCESS


def test_a_broken_promise_of_the_store_is_not_answered_away(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise InvariantBroken("S1")

    monkeypatch.setitem(handlers.HANDLERS, Ask.GET_MAX_OFFSET, broken)

    with pytest.raises(InvariantBroken):
        world.ask(Ask.GET_MAX_OFFSET, {})


def test_a_message_is_shown_as_it_is_stored(world: BrokerWorld) -> None:
    world.create_topic()
    world.send(b"hello", TAGS="red")
    (stored,) = world.records(TOPIC)

    answer = world.ask(Ask.VIEW_MESSAGE_BY_ID, {"offset": stored.commit_log_offset})

    assert decode_record(answer.body) == stored


def test_a_deleted_topic_takes_its_offsets_and_not_its_log(world: BrokerWorld) -> None:
    world.create_topic()
    world.send()
    world.state.offsets.commit("g", TOPIC, 0, 1)
    world.state.take_unregistered()

    assert world.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}).code == Code.SUCCESS

    assert world.state.offsets.get("g", TOPIC, 0) is None
    assert TOPIC not in world.file("config/topics.json")["topicConfigTable"]
    assert not world.state.unregistered  # whoever deletes tells the name servers
    world.create_topic()
    assert world.send().ext_fields["queueOffset"] == "1000"  # the first of the next file


def test_a_broker_tells_true_things_about_itself(world: BrokerWorld) -> None:
    world.create_topic()
    world.send()

    answer = world.ask(Ask.GET_BROKER_RUNTIME_INFO)
    table_of_facts = fastjson.loads(answer.body)["table"]

    assert table_of_facts["commitLogMaxOffset"] == str(world.state.store.log.end)
    assert table_of_facts["earliestMessageTimeStamp"] == str(world.now_ms)
    assert table_of_facts["brokerVersionDesc"] == "V5_4_0"


def test_the_numbers_of_a_topic_are_told_by_queue(world: BrokerWorld) -> None:
    world.create_topic()
    world.send()

    answer = world.ask(Ask.GET_TOPIC_STATS_INFO, {"topic": TOPIC})

    assert answer.body.decode() == (
        '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"orders"}:'
        f'{{"lastUpdateTimestamp":{world.now_ms},"maxOffset":1,"minOffset":0}}}},'
        '"topicPutTps":0.1}'  # a counter counts from the sample before it, 10 seconds ago
    )


@pytest.mark.parametrize("bits", [4, 8, 12, 4 | 1])
def test_a_message_that_claims_to_be_part_of_a_transaction_is_refused(
    world: BrokerWorld, bits: int
) -> None:
    """Stored as it says it would have a place in its queue's count and none in its queue."""
    world.create_topic()

    answer = world.ask(Ask.SEND_MESSAGE_V2, {**send_header(), "f": bits}, b"x")

    assert answer.code == Code.NO_PERMISSION
    assert world.send().ext_fields["queueOffset"] == "0"
    world.state.store.invariants()


def test_nobody_makes_more_queues_than_a_broker_can_count(world: BrokerWorld) -> None:
    header = {"topic": TOPIC, "readQueueNums": 1, "writeQueueNums": 65_536, "perm": 6}
    group = b'{"groupName":"g","retryQueueNums":65536}'

    assert world.ask(Ask.UPDATE_AND_CREATE_TOPIC, header).code == Code.INVALID_PARAMETER
    answer = world.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    assert answer.code == Code.INVALID_PARAMETER


def test_one_request_stops_nobody_with_all_that_it_names(world: BrokerWorld) -> None:
    data = [{"groupName": f"group-{number}"} for number in range(1_001)]
    beat = {"clientID": "c", "producerDataSet": data, "consumerDataSet": []}
    queues = [{"topic": "t", "brokerName": "b", "queueId": n} for n in range(10_001)]
    lock = {"consumerGroup": "g", "clientId": "c", "mqSet": queues}
    world.create_topic("wide", queues=10_001)

    for code, ext, body in (
        (Ask.HEART_BEAT, {}, fastjson.dumps(beat)),
        (Ask.LOCK_BATCH_MQ, {}, fastjson.dumps(lock)),
        (Ask.UNLOCK_BATCH_MQ, {}, fastjson.dumps(lock)),
        (Ask.GET_TOPIC_STATS_INFO, {"topic": "wide"}, b""),
        (Ask.GET_CONSUME_STATS, {"topic": "wide", "consumerGroup": "g"}, b""),
    ):
        answer = world.ask(code, ext, body)
        assert answer.code == Code.INVALID_PARAMETER
        assert "are allowed" in str(answer.remark)
    beat["producerDataSet"] = data[:1_000]
    assert world.ask(Ask.HEART_BEAT, {}, fastjson.dumps(beat)).code == Code.SUCCESS
    lock["mqSet"] = queues[:10_000]
    assert world.ask(Ask.LOCK_BATCH_MQ, {}, fastjson.dumps(lock)).code == Code.SUCCESS


@pytest.mark.parametrize("code", [Ask.HEART_BEAT, Ask.LOCK_BATCH_MQ, Ask.UNLOCK_BATCH_MQ])
def test_a_request_without_its_body_is_told_so(world: BrokerWorld, code: int) -> None:
    assert world.ask(code).remark == "the request's body is missing"


@pytest.mark.parametrize("code", [Ask.UPDATE_CONSUMER_OFFSET, Ask.VIEW_MESSAGE_BY_ID])
def test_a_field_that_is_missing_is_named_in_words(world: BrokerWorld, code: int) -> None:
    remark = world.ask(code).remark or ""

    assert "KeyError" not in remark
    assert "missing required field `" in remark


def test_a_delay_level_that_is_no_number_is_named_with_its_property(world: BrokerWorld) -> None:
    answer = world.ask(Ask.SEND_MESSAGE_V2, send_header(TOPIC, 0, DELAY="x"), b"body")

    assert "property DELAY=x: a delay level is a whole number" in str(answer.remark)


@pytest.mark.parametrize("is_mixed", [True, False])
def test_a_message_type_that_is_refused_names_those_that_may_be_set(is_mixed: bool) -> None:
    world = BrokerWorld(enableMixedMessageType=str(is_mixed).lower())
    header = {"topic": "t", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    header |= {"attributes": "+message.type=NOPE"}

    remark = world.ask(Ask.UPDATE_AND_CREATE_TOPIC, header).remark or ""

    assert "FIFO" in remark
    assert ("MIXED" in remark) == is_mixed
