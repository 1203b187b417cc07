"""Transaction listeners, over a client in memory: who is called, and how each half ends."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reliable_mq.errors import ConfigurationError, Unavailable, UsageError
from reliable_mq.message import CheckBack, Decision, Half, Message, MessageQueue, ReceivedMessage
from reliable_mq.outbox.asyncio_listeners import Listeners, TransactionResult
from reliable_mq.runtime.loop_thread import LoopThread

COMMIT, ROLLBACK, UNKNOWN = Decision
MESSAGE = Message(topic="transfers", body=b"x", message_id="M")


class Transactions:
    """What a client does with halves; it may have lost its broker."""

    def __init__(self) -> None:
        self.joined: list[str] = []
        self.sent: list[tuple[str, str]] = []
        self.ended: list[tuple[str, Decision]] = []
        self.answer: Any = None
        self.is_down = False

    async def join(self, group: str, answerer: Any) -> None:
        self.joined.append(group)
        self.answer = answerer

    async def send(self, message: Message, group: str) -> Half:
        self.sent.append((message.message_id, group))
        queue = MessageQueue(message.topic, "b", 0)
        return Half(
            message_id=message.message_id,
            group=group,
            queue=queue,
            half_offset=1,
            commit_log_offset=2,
        )

    async def end(self, half: Half, decision: Decision) -> None:
        if self.is_down:
            raise Unavailable("nobody there")
        self.ended.append((half.message_id, decision))


class Client:
    def __init__(self) -> None:
        self.transactions = Transactions()


class Link:
    """The connections of a process: a loop, and a client that may be replaced."""

    def __init__(self) -> None:
        self.loop_thread = LoopThread()
        self.client = Client()


class Listener:
    """Says what it is told to, and keeps what it was asked, and where."""

    def __init__(self, decision: object = COMMIT) -> None:
        self.decision = decision
        self.calls: list[tuple[Any, ...]] = []
        self.threads: list[int] = []

    def execute(self, message: Message, argument: Any) -> Any:
        self.calls.append((message, argument))
        self.threads.append(threading.get_ident())
        return self.decision

    def check(self, message: ReceivedMessage) -> Any:
        self.calls.append((message,))
        self.threads.append(threading.get_ident())
        return self.decision


class AsyncListener(Listener):
    async def execute(self, message: Message, argument: Any) -> Any:
        return super().execute(message, argument)

    async def check(self, message: ReceivedMessage) -> Any:
        return super().check(message)


class Promising(Listener):
    """Its methods are no coroutine functions, but return something to await."""

    def execute(self, message: Message, argument: Any) -> Any:
        return later(super().execute(message, argument))

    def check(self, message: ReceivedMessage) -> Any:
        return later(super().check(message))


async def later(decision: object) -> object:
    return decision


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    yield made
    made.loop_thread.close()


@pytest.fixture
def listeners(link: Link) -> Listeners:
    return Listeners("shop", link)  # type: ignore[arg-type]


def sent(listeners: Listeners, *, is_async: bool) -> TransactionResult:
    if is_async:
        return asyncio.run(listeners.send_async(MESSAGE, "argument"))
    return listeners.send(MESSAGE, "argument")


BOTH_WAYS = pytest.mark.parametrize("is_async", [False, True])
ALL_KINDS = pytest.mark.parametrize("kind", [Listener, AsyncListener, Promising])


@BOTH_WAYS
@ALL_KINDS
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_a_half_ends_as_its_listener_decides(
    listeners: Listeners,
    link: Link,
    kind: Callable[[Decision], Listener],
    decision: Decision,
    is_async: bool,
) -> None:
    listener = kind(decision)
    listeners.register("transfers", listener)
    assert sent(listeners, is_async=is_async) == TransactionResult("M", decision)
    assert listener.calls == [(MESSAGE, "argument")]
    done = link.client.transactions
    assert done.sent == [("M", "shop_transactions")]
    assert done.ended == [("M", decision)]


@BOTH_WAYS
def test_a_half_is_left_to_a_check_back_while_its_listener_does_not_know(
    listeners: Listeners, link: Link, is_async: bool
) -> None:
    listeners.register("transfers", Listener(UNKNOWN))
    assert sent(listeners, is_async=is_async).decision is UNKNOWN
    assert link.client.transactions.ended == []


@BOTH_WAYS
def test_a_half_whose_end_no_broker_took_is_left_to_a_check_back(
    listeners: Listeners, link: Link, is_async: bool
) -> None:
    listeners.register("transfers", Listener(COMMIT))
    link.client.transactions.is_down = True
    assert sent(listeners, is_async=is_async).decision is COMMIT
    assert link.client.transactions.ended == []


@BOTH_WAYS
@ALL_KINDS
def test_a_decision_that_is_none_is_refused_and_the_half_left(
    listeners: Listeners, link: Link, kind: Callable[[object], Listener], is_async: bool
) -> None:
    listeners.register("transfers", kind(True))
    with pytest.raises(UsageError, match=r"transfers returned True: return Decision\.COMMIT"):
        sent(listeners, is_async=is_async)
    assert link.client.transactions.ended == []


@BOTH_WAYS
def test_nothing_is_sent_to_a_topic_without_a_listener(
    listeners: Listeners, link: Link, is_async: bool
) -> None:
    with pytest.raises(UsageError, match=r'topic transfers has no .*"transfers"|transfers'):
        sent(listeners, is_async=is_async)
    assert (link.client.transactions.joined, link.client.transactions.sent) == ([], [])


def test_a_listener_of_a_plain_call_runs_in_the_callers_thread(listeners: Listeners) -> None:
    listener = Listener()
    listeners.register("transfers", listener)
    sent(listeners, is_async=False)
    assert listener.threads == [threading.get_ident()]


def test_a_plain_listener_does_not_hold_up_the_callers_loop(listeners: Listeners) -> None:
    """It runs in a thread of its own, and an `async def` on the loop."""
    plain, coroutine = Listener(), AsyncListener()
    listeners.register("transfers", plain)
    sent(listeners, is_async=True)
    assert plain.threads != [threading.get_ident()]
    listeners.register("refunds", coroutine)
    asyncio.run(listeners.send_async(Message(topic="refunds", body=b"x"), None))
    assert coroutine.threads == [threading.get_ident()]


def asked(topic: str) -> CheckBack:
    queue = MessageQueue(topic, "b", 0)
    half = Half(message_id="M", group="g", queue=queue, half_offset=1, commit_log_offset=2)
    return CheckBack(half, ReceivedMessage(topic=topic, body=b"x", queue=queue, queue_offset=0))


@ALL_KINDS
@pytest.mark.parametrize("decision", Decision)
def test_a_check_back_is_answered_by_the_listener_of_its_topic(
    listeners: Listeners, link: Link, kind: Callable[[Decision], Listener], decision: Decision
) -> None:
    listener, other = kind(decision), Listener()
    listeners.register("transfers", listener)
    listeners.register("refunds", other)
    listeners.join()
    question = asked("transfers")
    assert asyncio.run(link.client.transactions.answer(question)) is decision
    assert (listener.calls, other.calls) == ([(question.message,)], [])


def test_a_check_back_that_nobody_here_can_answer_is_left_to_another_process(
    listeners: Listeners, link: Link, caplog: pytest.LogCaptureFixture
) -> None:
    listeners.join()
    assert asyncio.run(link.client.transactions.answer(asked("elsewhere"))) is UNKNOWN
    assert "no listener for half messages of topic elsewhere" in caplog.text


def test_a_wrong_answer_to_a_check_back_is_refused(listeners: Listeners, link: Link) -> None:
    listeners.register("transfers", Listener("yes"))
    listeners.join()
    with pytest.raises(UsageError, match="returned 'yes'"):
        asyncio.run(link.client.transactions.answer(asked("transfers")))


def test_a_client_joins_once_and_a_new_client_joins_again(listeners: Listeners, link: Link) -> None:
    """A fork, or an application that was closed and opened, has another client."""
    listeners.join()
    listeners.join()
    first = link.client.transactions
    assert first.joined == ["shop_transactions"]
    link.client = Client()
    listeners.join()
    assert link.client.transactions.joined == ["shop_transactions"]
    listeners.forget_parent()
    listeners.join()
    assert link.client.transactions.joined == ["shop_transactions"] * 2


def test_a_long_name_of_an_application_is_cut_in_its_group(link: Link) -> None:
    listeners = Listeners("a" * 61, link)  # type: ignore[arg-type]
    listeners.join()
    assert link.client.transactions.joined == ["a" * 60 + "_transactions"]


class Needy(Listener):
    def __init__(self, account: str) -> None:
        super().__init__()
        self.account = account


class Executing:
    def execute(self, message: Message, argument: Any) -> Decision:
        raise NotImplementedError


class Unable:
    execute = check = "no function"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Executing(), "Executing has no method check"),
        (Executing, "Executing has no method check"),
        (Unable(), "Unable has no method execute"),
        (object(), "object has no method execute"),
        (Needy, r"Needy cannot be made without arguments .*'account'"),
    ],
)
def test_what_cannot_listen_is_refused(listeners: Listeners, given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        listeners.register("transfers", given)
    assert len(listeners) == 0


def test_a_topic_has_one_listener_and_a_legal_name(listeners: Listeners, link: Link) -> None:
    listeners.register("transfers", Listener)
    assert len(listeners) == 1
    with pytest.raises(UsageError, match="transfers already has a transaction listener"):
        listeners.register("transfers", Listener(ROLLBACK))
    with pytest.raises(ConfigurationError):
        listeners.register("not legal!", Listener())
    listeners.register("t" * 127, Needy("of my own"))
    with pytest.raises(ConfigurationError):
        listeners.register("t" * 128, Listener())
    assert sent(listeners, is_async=False).decision is COMMIT, "the class was called"
    assert len(listeners) == 2
