"""`dlq` with an application: whose dead letters it takes, and how often."""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.waiting import until

from reliable_mq import Client, Message, ReliableMQ
from reliable_mq.cli.dlq import _of_application
from reliable_mq.cli.main import BAD_USAGE, DONE, FAILED, run
from reliable_mq.client.administering.thread_browser import Browser
from reliable_mq.escalate.dead_letter import DeadLetter
from reliable_mq.escalate.sql_dead_letters import DeadLetterState
from reliable_mq.message import MessageQueue, ReceivedMessage

pytestmark = pytest.mark.processes

Call = Callable[..., tuple[int, str, str]]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ReliableMQBroker(tmp_path_factory.mktemp("broker"), "ASYNC_FLUSH") as running:
        yield running.name_server_address


@pytest.fixture
def groups() -> tuple[str, str, str]:
    """Give the groups of a consumer, of a declared topic, and of another application."""
    number = next(_numbers)
    return f"payments-{number}", f"billing-{number}", f"foreign-{number}"


@pytest.fixture
def call(
    groups: tuple[str, str, str],
    broker: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Call:
    """Give a call of the command line in a folder with an application and its tables."""
    module = f"letters_{next(_numbers)}"
    payments, billing, _ = groups
    (tmp_path / f"{module}.py").write_text(
        "from reliable_mq import ReliableMQ\n"
        f"mq = ReliableMQ('shop', database='sqlite:///{tmp_path}/shop.db', broker='{broker}')\n"
        f"mq.topic('orders', groups=['{billing}'])\n"
        f"@mq.consumer('orders', group='{payments}')\n"
        "def pay(payload: dict) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELIABLE_MQ_APP", f"{module}:mq")
    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path}/shop.db")
    mq.create_tables()
    mq.close()

    def called(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run(words)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return called


def give_up(broker: str, group: str) -> str:
    """Store a dead letter, as a broker does; return its message id."""
    with Client(broker) as client:
        letter = Message(topic=f"%DLQ%{group}", body=b"{}", properties={"RETRY_TOPIC": "orders"})
        return client.send(letter).message_id


def test_a_misspelt_group_is_named_with_the_one_that_was_meant(
    groups: tuple[str, str, str], call: Call
) -> None:
    payments, _, _ = groups
    misspelt = payments.replace("payments", "payment")
    none = "0 of 0 dead letter(s) retried: none matches\n"
    warned = (
        f"warning: the application has no consumer group {misspelt}; did you mean {payments}?\n"
    )

    assert call("dlq", "retry", "--group", misspelt, "--yes") == (DONE, none, warned)
    assert call("dlq", "retry", "--group", payments, "--yes") == (DONE, none, "")


def test_an_application_sees_and_retries_its_own_dead_letters_only(
    broker: str, groups: tuple[str, str, str], call: Call
) -> None:
    payments, billing, foreign = groups
    ids = {group: give_up(broker, group) for group in groups}
    left_out = "dead letter(s) of other applications are left out: --all-groups\n"

    code, out, err = call("dlq", "list", "--json")
    assert (code, {each["consumer_group"] for each in json.loads(out)}) == (
        DONE,
        {payments, billing},
    )
    assert err.endswith(left_out)
    every = json.loads(call("dlq", "list", "--all-groups", "--json")[1])
    assert {foreign, payments} < {each["consumer_group"] for each in every}
    named = json.loads(call("dlq", "list", "--group", foreign, "--json")[1])
    assert [each["message_id"] for each in named] == [ids[foreign]]

    code, out, err = call("dlq", "retry", "--waiting", "--yes", "--json")
    own = {f"{group} {ids[group]}": True for group in (payments, billing)}
    assert (code, json.loads(out)) == (DONE, own)
    assert err.endswith(left_out)
    code, _, err = call("dlq", "retry", ids[foreign], "--yes")
    assert (code, left_out in err) == (FAILED, True)
    assert call("dlq", "retry", ids[foreign], "--group", foreign, "--yes")[0] == DONE


def test_a_second_retry_says_that_the_dead_letter_is_on_its_way(
    broker: str, groups: tuple[str, str, str], call: Call
) -> None:
    message_id = give_up(broker, groups[0])
    assert call("dlq", "retry", message_id, "--yes")[0] == DONE

    code, out, err = call("dlq", "retry", message_id, "--yes")
    assert (code, out) == (FAILED, "0 of 1 dead letter(s) retried\n")
    assert f"{groups[0]} {message_id} is not retried: it is already on its way since 20" in err
    assert err.endswith("; another copy: --also-settled\n")
    assert call("dlq", "retry", "--waiting", "--yes")[1].startswith("0 of 0 ")
    assert call("dlq", "retry", message_id, "--also-settled", "--yes")[0] == DONE


def test_without_a_database_the_copy_at_the_broker_says_that_it_is_on_its_way(
    broker: str, groups: tuple[str, str, str], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RELIABLE_MQ_APP")
    message_id = give_up(broker, groups[2])
    words = ("dlq", "retry", message_id, "--yes", "--broker", broker)
    assert call(*words)[0] == DONE
    with Browser(broker) as browser:
        until(lambda: browser.find(f"%RETRY%{groups[2]}", message_id))

    code, _, err = call(*words)
    assert (code, "it is already on its way since" in err) == (FAILED, True)


def test_the_old_name_all_is_understood_and_is_no_way_to_retry_all_that_wait(call: Call) -> None:
    code, _, err = call("dlq", "list", "--all", "--json")
    assert code == DONE
    assert err.startswith("warning: --all is called --also-settled now\n")

    code, _, err = call("dlq", "retry", "--yes")
    assert code == BAD_USAGE
    assert "a filter such as --group or --topic; all that wait: --waiting" in err
    assert call("dlq", "retry", "--waiting", "--also-settled")[0] == BAD_USAGE


def test_a_dead_letter_of_another_group_is_ours_if_its_stub_is_ours() -> None:
    queue = MessageQueue("%DLQ%g", "b", 0)
    message = ReceivedMessage(queue=queue, queue_offset=0, topic="%DLQ%g", body=b"")
    letters = [
        DeadLetter("g", message),
        DeadLetter("g", message, DeadLetterState()),
        DeadLetter("g", message, DeadLetterState(has_stub=True)),
    ]

    assert _of_application(letters, frozenset({"h"})) == letters[2:]
    assert _of_application(letters, frozenset({"g"})) == letters
    assert _of_application(letters, None) == letters
