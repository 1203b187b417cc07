"""What is asked of a cluster and what its answers mean, and brokers that do not answer."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from reliable_mq.errors import (
    ConfigurationError,
    ConnectionLost,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    Unavailable,
)
from reliable_mq.reconcile.brokers import spark_access, topic_pulls
from reliable_mq.reconcile.brokers.log_schema import LOG_SCHEMA
from reliable_mq.reconcile.brokers.spark_cluster import PullPartition, read_cluster
from reliable_mq.reconcile.brokers.spark_topic_source import read_pulls
from reliable_mq.reconcile.brokers.topic_pulls import BrokerAddress, Pulled, PullStatus, QueueRange
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, decode_command, encode_command, reply, request
from reliable_mq.wire.frame import Frame, FrameReader
from reliable_mq.wire.headers import PullMessageHeader


def answer(body: bytes = b"", code: int = 0, **ext: int) -> Command:
    fields = {name: str(value) for name, value in ext.items()}
    return reply(request(1), code, "so it is", fields, body)


def pull_answer(code: int, after: int, low: int = 0, high: int = 100, body: bytes = b"") -> Command:
    ext = {"nextBeginOffset": after, "minOffset": low, "maxOffset": high}
    return answer(body, code, suggestWhichBrokerId=0, **ext)


def test_of_each_broker_the_master_is_read_and_else_a_slave() -> None:
    body = (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{1:"h:2",0:"h:1"},"brokerName":"b"},'
        b'"a":{"brokerAddrs":{2:"h:4",1:"h:3"}},"gone":{"brokerAddrs":{}}}}'
    )

    assert topic_pulls.brokers_in(answer(body)) == [
        BrokerAddress("a", "h:3"),
        BrokerAddress("b", "h:1"),
    ]


def test_a_broker_says_which_topics_may_be_read() -> None:
    body = b'{"topicConfigTable":{"b":{"perm":6},"a":{"perm":4},"c":{"perm":2}}}'

    assert topic_pulls.topics_in(answer(body)) == {"a": True, "b": True, "c": False}


def test_topics_of_applications_and_their_copies_are_told_of() -> None:
    told = ("orders", "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
    hidden = ("TBW102", "rmq_sys_REVIVE_LOG_c", "RMQ_SYS_TRANS_HALF_TOPIC", "%LMQ%x")

    assert all(map(topic_pulls.may_have_messages, told))
    assert not any(map(topic_pulls.may_have_messages, hidden))


def test_a_queue_without_messages_begins_where_it_ends() -> None:
    body = fastjson.dumps(
        {
            "offsetTable": {
                (("brokerName", "a"), ("queueId", 1), ("topic", "t")): {
                    "maxOffset": 9,
                    "minOffset": 4,
                },
                (("brokerName", "a"), ("queueId", 0), ("topic", "t")): {
                    "maxOffset": -1,
                    "minOffset": -1,
                },
            }
        }
    )

    assert topic_pulls.ranges_in(answer(body)) == [QueueRange(0, 0, 0), QueueRange(1, 4, 9)]


@pytest.mark.parametrize(
    ("pulled", "means"),
    [
        (pull_answer(ResponseCode.SUCCESS, 12, body=b"x"), Pulled(PullStatus.MESSAGES, 12, b"x")),
        (pull_answer(ResponseCode.PULL_OFFSET_MOVED, 40, low=40), Pulled(PullStatus.GONE, 40)),
        (pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 14), Pulled(PullStatus.NOTHING, 14)),
        (pull_answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 10), Pulled(PullStatus.NOTHING, 11)),
        (pull_answer(ResponseCode.PULL_OFFSET_MOVED, 3, high=3), Pulled(PullStatus.END, 10)),
        (pull_answer(ResponseCode.PULL_NOT_FOUND, 10, high=10), Pulled(PullStatus.END, 10)),
    ],
)
def test_a_pull_goes_on_behind_what_it_was_told(pulled: Command, means: Pulled) -> None:
    assert topic_pulls.messages_in(pulled, 10) == means


def test_an_answer_that_would_go_in_circles_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a pull from offset 10 goes on at 10"):
        topic_pulls.messages_in(pull_answer(ResponseCode.SUCCESS, 10), 10)


def test_a_pull_commits_nothing_and_waits_for_nothing() -> None:
    question = topic_pulls.ask_messages("orders", 3, 10, 15, 1000)

    header = PullMessageHeader.decode(question.ext_fields)
    assert (header.consumer_group, header.sys_flag) == ("TOOLS_CONSUMER", 0x4)
    assert (header.queue_offset, header.max_msg_nums, header.max_msg_bytes) == (10, 5, 1000)
    assert header.suspend_timeout_millis == 0


def test_refusals_and_nonsense_are_told() -> None:
    readers = (
        *(topic_pulls.brokers_in, topic_pulls.topics_in, topic_pulls.ranges_in),
        *(topic_pulls.first_in, topic_pulls.progress_in, topic_pulls.groups_in),
    )
    for read in readers:
        for body in (b"[", b"3", b'{"brokerAddrTable":3}', b'{"topicConfigTable":{"a":3}}'):
            with pytest.raises(ProtocolError):
                read(answer(body))
        with pytest.raises(RemoteError, match="so it is"):
            read(answer(code=1))
    with pytest.raises(RemoteError, match="so it is"):
        topic_pulls.messages_in(answer(code=1), 0)


@contextmanager
def server(*answers: bytes | int) -> Iterator[str]:
    """Answer each request on one connection with the next of some bytes, then close it.

    A number is a refusal with that code, empty bytes are a name server's answer.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                reader = FrameReader()
                for given in answers:
                    frames: list[Frame] = []
                    while not frames:
                        frames = reader.feed(connection.recv(65536))
                    command = decode_command(frames[0])
                    code = given if isinstance(given, int) else ResponseCode.SUCCESS
                    made = encode_command(reply(command, code, "not supported", body=BODY))
                    connection.sendall(given if isinstance(given, bytes) and given else made)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


class ScriptedBroker:
    """Answers what a plan asks a cluster of one broker; its one topic has five messages.

    `asked`: the codes of all requests. `perm` of the topic. `gives`: how many of the messages it
    gives when they are pulled.
    """

    def __init__(self, perm: int = 6, gives: int = 5) -> None:
        self.asked: list[int] = []
        queue = (("brokerName", "b"), ("queueId", 0), ("topic", "orders"))
        ranges = {"offsetTable": {queue: {"minOffset": 0, "maxOffset": 5}}}
        self._answers: dict[int, Command] = {
            RequestCode.GET_BROKER_CLUSTER_INFO: answer(name_server_of("h:1")),
            RequestCode.GET_ALL_TOPIC_CONFIG: answer(
                fastjson.dumps({"topicConfigTable": {"orders": {"perm": perm}}})
            ),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: answer(b'{"subscriptionGroupTable":{}}'),
            RequestCode.GET_BROKER_CONFIG: answer(b""),
            RequestCode.GET_TOPIC_STATS_INFO: answer(fastjson.dumps(ranges)),
            RequestCode.GET_ALL_CONSUMER_OFFSET: answer(b'{"offsetTable":{}}'),
            RequestCode.GET_BROKER_RUNTIME_INFO: answer(
                b'{"table":{"earliestMessageTimeStamp":"77"}}'
            ),
        }
        self._gives = gives

    def __call__(self, _address: str, _timeout: float, **_: object) -> "ScriptedBroker":
        return self

    def __enter__(self) -> "ScriptedBroker":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def call(self, command: Command) -> Command:
        self.asked.append(command.code)
        if command.code != RequestCode.PULL_MESSAGE:
            return self._answers[command.code]
        begin = PullMessageHeader.decode(command.ext_fields).queue_offset
        if begin >= self._gives:
            return pull_answer(ResponseCode.PULL_NOT_FOUND, begin)
        return pull_answer(ResponseCode.SUCCESS, self._gives, body=b"")


def test_how_far_groups_have_come_is_asked_before_what_queues_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given an increment that reads queues up to what they hold now, then no group counts as
    further than that, or what became of the attempts in between would be missed."""
    broker = ScriptedBroker()
    monkeypatch.setattr(spark_access, "BlockingLink", broker)

    (ledger,) = read_cluster("h:9876")

    order = [RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_TOPIC_STATS_INFO]
    assert [code for code in broker.asked if code in order] == order
    assert (ledger.queues, ledger.oldest_ms) == ({("orders", 0): (0, 5)}, 77)


def test_messages_that_nobody_may_read_are_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a topic that may only be written to, then a query of all others goes on without it; but
    whoever asks for it, or needs the whole log, is told."""
    monkeypatch.setattr(spark_access, "BlockingLink", ScriptedBroker(perm=2))

    (ledger,) = read_cluster("h:9876")
    assert ledger.queues == {}
    for asked in ({"is_whole": True}, {"topics": ["orders"]}):
        with pytest.raises(ConfigurationError, match="b-2 forbids reading the topic orders"):
            read_cluster("h:9876", **asked)
    (ledger,) = read_cluster("h:9876", is_whole=True, is_partial=True)
    assert "forbids reading" in (ledger.missing or "")


def test_a_queue_that_ends_before_what_its_broker_said_is_not_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_access, "BlockingLink", ScriptedBroker(gives=3))
    partition = PullPartition(BrokerAddress("b", "h:1"), "orders", 0, 0, 5, ())

    with pytest.raises(ProtocolError, match="queue 0 of orders ends at offset 5, but returns"):
        list(read_pulls(partition, LOG_SCHEMA, check_body=False, timeout=1))


def name_server_of(address: str) -> bytes:
    return b'{"brokerAddrTable":{"b-2":{"brokerAddrs":{0:"' + address.encode() + b'"}}}}'


BODY = name_server_of("127.0.0.1:9")  # where nobody listens


def test_a_broker_that_cannot_be_reached_is_named_in_one_line() -> None:
    with server(b"") as address, pytest.raises(Unavailable) as caught:
        read_cluster(address, timeout=60)

    assert str(caught.value).startswith("broker b-2 cannot be read: 127.0.0.1:")
    assert "\n" not in str(caught.value)


def test_a_broker_that_cannot_be_reached_may_be_left_out_and_is_told_of() -> None:
    with server(b"") as address:
        (ledger,) = read_cluster(address, timeout=60, is_partial=True)

    assert (ledger.broker.name, ledger.partitions) == ("b-2", ())
    assert (ledger.missing or "").startswith("broker b-2 cannot be read: ")


def test_the_next_name_server_is_asked_when_one_is_away() -> None:
    nowhere = "127.0.0.1:9"
    with server(b"") as address:
        (ledger,) = read_cluster(f"{nowhere};{address}", timeout=60, is_partial=True)
    assert ledger.broker.name == "b-2"

    with pytest.raises(Unavailable, match=f"no name server answers \\({nowhere}: "):
        read_cluster(nowhere, timeout=60)


def test_a_peer_that_is_no_name_server_is_named_and_the_next_one_is_asked() -> None:
    """Given the address of a broker, which refuses the question, as the first name server."""
    refusal = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    with server(refusal) as other, server(b"") as address:
        (ledger,) = read_cluster(f"{other};{address}", timeout=60, is_partial=True)
    assert ledger.broker.name == "b-2"

    with server(refusal) as other:
        says = f"no name server answers \\({other} is a broker, not a name server: give"
        with pytest.raises(Unavailable, match=says):
            read_cluster(other, timeout=60)


def test_a_link_connects_anew_after_an_error() -> None:
    """Given a peer that goes away in the middle of an answer, then the call fails and the next one
    is answered over a connection of its own."""
    question = request(RequestCode.GET_BROKER_CONFIG)
    with server(b"\0\0\1\0") as address:
        link = BlockingLink(address, 60)
        with pytest.raises(ConnectionLost, match=address):
            link.call(question)
    with server(b"", b"") as other:
        link.address = other
        assert [link.call(question).body for _ in range(2)] == [BODY, BODY]
        link.close()


def test_what_is_no_command_and_what_is_silent_are_told_apart() -> None:
    question = request(RequestCode.GET_BROKER_CONFIG)
    with (
        server(b"\xff" * 8) as address,
        BlockingLink(address, 60) as link,
        pytest.raises(ProtocolError, match="sent an invalid command"),
    ):
        link.call(question)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RequestTimeout, match=f"{address} is silent for 0.05 s"):
            BlockingLink(address, 0.05).call(question)
