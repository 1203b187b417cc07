"""`topic`, `group`, `message` and `dlq` at a running broker: what one types, and what comes."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.broker_core.raw_client import RawClient

from reliable_mq.cli.main import BAD_USAGE, DONE, FAILED, run
from reliable_mq.client.thread_client import Client
from reliable_mq.message import Message
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode

pytestmark = pytest.mark.processes

Call = Callable[..., tuple[int, str, str]]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the name server of a running broker called "one"."""
    directory = tmp_path_factory.mktemp("broker")
    with ReliableMQBroker(directory, "ASYNC_FLUSH", settings={"brokerName": "one"}) as running:
        yield running.name_server_address


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Give a call of the command line in this process: exit code, output, errors."""
    monkeypatch.delenv("RELIABLE_MQ_BROKER", raising=False)

    def called(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run(words)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return called


@pytest.fixture
def at(broker: str, call: Call) -> Callable[..., str]:
    """Give a call at the running broker that must succeed: what it prints."""

    def called(*words: str) -> str:
        code, out, err = call(*words, "--broker", broker)
        assert (code, err) == (DONE, ""), err
        return out

    return called


@pytest.fixture
def topic() -> str:
    """Give a topic that no other test uses."""
    return f"orders-{next(_numbers)}"


def test_a_topic_lives_from_create_to_delete(
    at: Callable[..., str], broker: str, call: Call, topic: str
) -> None:
    create = ("topic", "create", topic, "--queues", "2")
    assert at(*create, "--dry-run") == f"topic {topic} would be made at one\n"
    assert at(*create) == f"topic {topic} made at one\n"
    assert at(*create) == f"topic {topic} already has these settings\n"
    assert topic in at("topic", "list").splitlines()
    assert "TBW102" in json.loads(at("topic", "list", "--all", "--json"))
    update = ("topic", "update", topic, "--permission", "r", "--yes")
    assert at(*update) == f"topic {topic} changed at one\n"
    (settings,) = json.loads(at("topic", "show", topic, "--json"))
    assert (settings["broker"], settings["permission"], settings["read_queues"]) == ("one", "r", 2)
    (place,) = json.loads(at("topic", "route", topic, "--json"))
    assert (place["broker"], place["permission"]) == ("one", "r")
    assert "one" in at("topic", "status", topic)
    none = f"no consumer group reads topic {topic}\n"
    assert call("topic", "consumers", topic, "--broker", broker) == (DONE, "", none)
    assert json.loads(at("topic", "consumers", topic, "--json")) == []
    assert at("topic", "delete", topic, "--dry-run") == f"topic {topic} would be deleted at one\n"
    assert at("topic", "delete", topic, "--yes") == f"topic {topic} deleted at one\n"
    assert topic not in json.loads(at("topic", "list", "--json"))


def test_a_change_that_is_refused_everywhere_is_told_as_that_alone(
    at: Callable[..., str], broker: str, call: Call, topic: str
) -> None:
    at("topic", "create", topic)
    update = ("topic", "update", topic, "--attribute", "no=such", "--yes", "--broker", broker)
    code, out, err = call(*update)
    assert (code, out) == (FAILED, "")
    assert err.startswith("error: one: ")


def test_a_group_lives_from_create_to_delete(
    at: Callable[..., str], broker: str, topic: str
) -> None:
    group = f"group-of-{topic}"
    at("topic", "create", topic, "--queues", "2")
    with Client(broker) as client:
        for number in range(6):
            client.send(Message(topic=topic, body=b"%d" % number, keys=(f"key-{number}",)))
        (producer,) = json.loads(at("group", "producers", "reliable_mq_producer", "--json"))[
            "reliable_mq_producer"
        ]
        assert producer["client_id"] == client.client_id
    assert at("group", "create", group, "--retries", "3") == f"group {group} made at one\n"
    assert group in at("group", "list")
    (settings,) = json.loads(at("group", "show", group, "--json"))
    assert (settings["retries_max"], settings["may_consume"]) == (3, True)
    update = ("group", "update", group, "--no-consume", "--yes")
    assert at(*update) == f"group {group} changed at one\n"
    assert "no member" in at("group", "connections", group)
    assert json.loads(at("group", "members", group, "--json")) == []

    dry = json.loads(at("group", "reset", group, topic, "--to-end", "--dry-run", "--json"))
    assert sum(row["after"] for row in dry) == 6
    assert json.loads(at("group", "progress", group, "--json"))["queues"] == []
    assert "2 queue(s) set" in at("group", "reset", group, topic, "--to-start", "--yes")
    at(
        "group",
        "reset",
        group,
        topic,
        *("--to-offset", "2", "--broker-name", "one", "--queue", "1"),
        "-y",
    )
    progress = json.loads(at("group", "progress", group, "--json"))
    assert (progress["lag"], [row["committed"] for row in progress["queues"]]) == (4, [0, 2])
    assert "lag 4, in flight 0" in at("group", "progress", group)
    overview = json.loads(at("group", "progress", "--json"))
    assert {row["group"]: row["lag"] for row in overview}[group] == 4
    at("group", "clone", group, "heirs", "--topic", topic, "--yes")
    assert json.loads(at("group", "progress", "heirs", "--json"))["lag"] == 4
    assert at("group", "delete", group, "--offsets", "--yes") == f"group {group} deleted at one\n"
    assert group not in at("group", "list", "--json")


def test_messages_are_shown_by_id_key_place_and_time(
    at: Callable[..., str], broker: str, topic: str
) -> None:
    at("topic", "create", topic, "--queues", "1")
    with Client(broker) as client:
        sent = [
            client.send(Message(topic=topic, body=b"%d" % number, keys=("all", f"key-{number}")))
            for number in range(3)
        ]
    one = sent[1]

    def shown(*words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(at("message", *words, "--json"))
        return found

    for words in (
        ("show", one.offset_message_id),
        ("show", one.message_id, "--topic", topic),
        ("find", topic, "--key", "key-1"),
        ("at", topic, "one", "0", "1"),
    ):
        (found,) = shown(*words)
        assert (found["message_id"], found["content"]) == (one.message_id, "1")
    assert [each["content"] for each in shown("list", topic)] == ["0", "1", "2"]
    assert len(shown("list", topic, "--limit", "2")) == 2
    assert shown("list", topic, "--until", "-1h") == []
    assert shown("find", topic, "--key", "all", "--until", "-1h") == []
    assert one.message_id in at("message", "list", topic)
    assert f"offset_message_id  {one.offset_message_id}" in at(
        "message", "show", one.offset_message_id
    )


def test_dead_letters_are_listed_shown_and_sent_again_without_a_database(
    at: Callable[..., str], broker: str, topic: str
) -> None:
    group = f"group-of-{topic}"
    at("group", "create", group)
    with Client(broker) as client:  # as a broker of Apache's, too, stores what a group gave up
        letter = Message(
            topic=f"%DLQ%{group}",
            body=b"poison",
            properties={"RETRY_TOPIC": topic, "DEAD_LETTER_REASON": "cannot be read"},
        )
        message_id = client.send(letter).message_id
    (listed,) = json.loads(at("dlq", "list", "--group", group, "--json"))
    assert (listed["message_id"], listed["state"]) == (message_id, "unknown")
    assert (listed["topic"], listed["reason"]) == (topic, "cannot be read")
    (shown,) = json.loads(at("dlq", "show", message_id, "--json"))
    assert shown["content"] == "poison"
    retried = json.loads(at("dlq", "retry", message_id, "--yes", "--json"))
    assert retried == {f"{group} {message_id}": True}


def test_a_dead_letter_that_is_not_there_fails_and_the_others_are_done(
    broker: str, topic: str, call: Call
) -> None:
    group, unknown = f"group-of-{topic}", "F" * 32
    with Client(broker) as client:
        letter = Message(topic=f"%DLQ%{group}", body=b"poison", properties={"RETRY_TOPIC": topic})
        message_id = client.send(letter).message_id

    words = ("dlq", "retry", unknown, message_id, "--group", group, "--yes", "--broker", broker)
    code, out, err = call(*words)

    assert code == 1
    assert out == f"{group} {message_id} retried\n1 of 2 dead letter(s) retried\n"
    assert err == (
        f"{group} {unknown} is not retried: there is no such dead letter; if it is a key: "
        f"reliable-mq stub show {unknown} --app MODULE:OBJECT\n"
    )


def test_a_group_without_dead_letters_has_an_empty_list_of_them(at: Callable[..., str]) -> None:
    assert json.loads(at("dlq", "list", "--group", "healthy", "--json")) == []
    assert at("dlq", "retry", "--group", "healthy", "--yes").startswith("0 of 0 ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("topic", "list"), "no cluster is named: give --broker"),
        (("topic", "list", "--broker", "nonsense"), "'nonsense' is no host:port"),
        (("topic", "list", "--broker", "embedded:x"), "inside the application's process"),
        (("topic", "create", "a b", "--broker", "NS"), "'a b' is not a legal name"),
        (("topic", "create", "t", "--permission", "x", "--broker", "NS"), "one of rw, r, w, none"),
        (("topic", "update", "t", "--permission", "rwx", "--broker", "NS"), "one of rw, r, w"),
        (("topic", "create", "t", "--attribute", "x", "--broker", "NS"), "NAME=VALUE, not 'x'"),
        (
            ("topic", "create", "t", "--broker-name", "two", "--broker", "NS"),
            "no broker two; there are one",
        ),
        (("topic", "update", "t", "--broker", "NS"), "nothing to change:"),
        (("group", "update", "g", "--broker", "NS"), "nothing to change:"),
        (("group", "create", "a b", "--broker", "NS"), "'a b' is not a legal name"),
        (("group", "reset", "g", "t", "--broker", "NS"), "give one of --to-time"),
        (("group", "reset", "g", "t", "--to-start", "--to-end", "--broker", "NS"), "give one of"),
        (("group", "reset", "g", "t", "--to-offset", "1", "--broker", "NS"), "needs --broker-name"),
        (
            ("group", "reset", "g", "t", "--to-end", "--queue", "1", "--broker", "NS"),
            "needs --broker-name",
        ),
        (("group", "reset", "g", "t", "--to-time", "soon", "--broker", "NS"), "not 'soon'"),
        (("group", "progress", "--topic", "t", "--broker", "NS"), "need a group"),
        (("message", "show", "xyz", "--broker", "NS"), "is looked up with --topic"),
        (("message", "list", "t", "--since", "soon", "--broker", "NS"), "not 'soon'"),
        (("dlq", "list"), "or --broker HOST:PORT alone"),
        (("dlq", "retry", "X", "--note", "n", "--broker", "NS"), "stored in an audit"),
    ],
)
def test_bad_usage_is_one_clear_line_and_exits_with_2(
    words: tuple[str, ...], why: str, broker: str, call: Call
) -> None:
    code, out, err = call(*(broker if word == "NS" else word for word in words))

    assert (code, out) == (BAD_USAGE, "")
    assert why in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("topic", "show", "nowhere"), "no broker has topic nowhere"),
        (("topic", "route", "nowhere"), "no name server knows topic nowhere"),
        (("topic", "status", "nowhere"), "no name server knows topic nowhere"),
        (("topic", "delete", "nowhere", "--yes"), "no broker has topic nowhere"),
        (("topic", "delete", "TBW102", "--yes"), "conflict with system topic"),
        (("group", "show", "nobody"), "no broker has group nobody"),
        (("group", "progress", "nobody"), "no broker has group nobody"),
        (("group", "delete", "nobody", "--yes"), "no broker has group nobody"),
        (("group", "producers", "nobody"), "no producer of group nobody is connected"),
        (("group", "reset", "nobody", "TBW102", "--to-end", "--yes"), "nobody does not exist"),
        (("group", "clone", "nobody", "heirs", "--yes"), "no broker has group nobody"),
        (("message", "list", "nowhere"), "no name server knows topic nowhere"),
    ],
)
def test_what_is_not_there_is_one_clear_line_and_exits_with_1(
    words: tuple[str, ...], why: str, broker: str, call: Call
) -> None:
    code, out, err = call(*words, "--broker", broker)

    assert (code, out) == (FAILED, "")
    assert why in err
    assert err.count("\n") == 1


def test_the_cluster_may_be_named_by_the_environment(
    broker: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_BROKER", broker)

    assert call("topic", "list", "--json")[0] == DONE
    assert call("dlq", "list", "--json")[0] == DONE


@contextmanager
def lost_broker(name_server: str, *topics: str) -> Iterator[None]:
    """Let the name server know a broker called "two" with these topics, at which nobody is."""
    settings = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
    table = {name: {"topicName": name, **settings} for name in (*topics, "own", "self")}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 5}
    wrapper = {"dataVersion": version, "topicConfigTable": table}
    header = {
        "brokerName": "two",
        "brokerAddr": "127.0.0.1:1",
        "clusterName": "c",
        "brokerId": 0,
        "compressed": "false",
        "bodyCrc32": 0,
    }
    body = fastjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
    with RawClient(name_server) as client:
        assert client.ask(RequestCode.REGISTER_BROKER, header, body).code == 0
        yield


def test_a_broker_that_is_away_is_named_and_the_rest_is_done_and_told(
    broker: str, call: Call, at: Callable[..., str], topic: str
) -> None:
    group = f"group-of-{topic}"
    at("topic", "create", topic, "--queues", "1")
    at("group", "create", group)
    with Client(broker) as client:
        client.send(Message(topic=topic, body=b"x", keys=("k",)))
    with lost_broker(broker, topic):
        for words, shown in (
            (("topic", "create", f"{topic}-b"), f"topic {topic}-b made at one"),
            (("topic", "status", topic), "one "),
            (("topic", "show", topic), "one "),
            (("group", "list"), group),
            (("group", "update", group, "--retries", "2", "-y"), f"group {group} changed at one"),
            (("group", "reset", group, topic, "--to-start", "-y"), "1 queue(s) set"),
            (("group", "progress", group), "lag 1"),
            (("message", "find", topic, "--key", "k"), " x"),
            (("message", "list", topic), " x"),
            (("topic", "delete", topic, "-y"), f"topic {topic} deleted at one"),
        ):
            code, out, err = call(*words, "--broker", broker)
            assert (code, err.count("\n")) == (FAILED, 1), (words, err)
            assert shown in out, (words, out)
            assert "127.0.0.1:1" in err, words
        # it may have the offsets that the others do not have
        assert call("group", "progress", "nobody", "--broker", broker)[:2] == (FAILED, "")
    # the name servers keep what a broker has not deleted, until the same is said again
    assert topic in at("topic", "list").splitlines()
    assert call("topic", "delete", topic, "-y", "--broker", broker)[0] == DONE
    assert topic not in at("topic", "list").splitlines()


def test_a_cluster_that_is_away_is_told_in_a_line(call: Call, tmp_path: Path) -> None:
    code, _, err = call("topic", "list", "--broker", "127.0.0.1:1")

    assert code == FAILED
    assert "no name server answers" in err
    assert err.count("\n") == 1
