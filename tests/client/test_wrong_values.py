"""Every public verb of the client refuses values of wrong types, by one error that names them.

The verbs are found by looking: a new one, or a parameter of a type that `WRONG` does not know, is
tried or fails here.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest

from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.client.administering.thread_admin import (
    DeadLetters,
    Groups,
    Messages,
    Offsets,
    Topics,
)
from reliable_mq.client.administering.topic_settings import TopicChange
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import TLS, Credentials
from reliable_mq.client.consuming.subscription import Sql, Subscription
from reliable_mq.client.consuming.thread_pull_consumer import PullConsumer
from reliable_mq.client.consuming.thread_simple_consumer import SimpleConsumer
from reliable_mq.client.sending.asyncio_transactions import AsyncTransactions
from reliable_mq.client.sending.thread_sending import Batcher
from reliable_mq.client.thread_client import Client, PushConsumer
from reliable_mq.errors import ConfigurationError, MessageRefused, UsageError
from reliable_mq.message import Decision, Half, Message, MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Dead, Later, Outcome, checked_outcomes

QUEUE = MessageQueue("t", "a", 0)
HALF = Half(message_id="ID", group="g", queue=QUEUE, half_offset=0, commit_log_offset=0)
RECEIVED = ReceivedMessage(topic="t", body=b"1", queue=QUEUE, queue_offset=0)

WRONG: dict[str, list[Any]] = {
    "str": [None, 5, b"t"],
    "bool": [None, "no", 1],
    "int": ["1", None, 1.5, True],
    "float": ["1", None, math.nan, math.inf, timedelta(seconds=1), True],
    "datetime": [None, "now", 5.0],
    "bytes": [None, "text", 5],
    "Message": [None, "text", ("t", b"1")],
    "MessageQueue": [None, "t", ("t", "a", 0)],
    "ReceivedMessage": [None, "text", Message(topic="t", body=b"1")],
    "Half": [None, "half"],
    "Decision": [None, "commit"],
    "Subscription": [None, "t", {"t": "*"}],
    "TopicChange": [None, {"permission": "rw"}],
    "GroupChange": [None, {"retries_max": 1}],
    "Sequence": [None, 5, "text"],
    "Collection": [None, 5, "text", [5]],
    "Iterable": [None, 5, "text", ["text"]],
    "Mapping": [None, 5, ["t"], {"t": 5.5}],
    "Callable": [None, 5, "text"],
    "Literal": [None, "nowhere", 5],
}
"""Values that an annotation does not mean, by the first name in it."""


async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
    return [CONSUMED] * len(messages)


RIGHT: dict[str, Any] = {
    "str": "t",
    "int": 1,
    "float": 0.1,
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "bytes": b"1",
    "Message": Message(topic="t", body=b"1"),
    "MessageQueue": QUEUE,
    "ReceivedMessage": RECEIVED,
    "Half": HALF,
    "Decision": Decision.COMMIT,
    "Subscription": Subscription(group="another", topics={"t": "*"}),
    "TopicChange": TopicChange(),
    "GroupChange": GroupChange(),
    "Sequence": (),
    "Iterable": (),
    "Mapping": {"t": "*"},
    "Callable": handle,
}
"""What stands beside a wrong value, for parameters that have to be given."""

THREADS = (
    *(Client, PushConsumer, PullConsumer, SimpleConsumer, Batcher),
    *(Topics, Groups, Offsets, Messages, DeadLetters),
)


class Verb(NamedTuple):
    """A verb of the face for threads, or its twin on a loop."""

    face: type
    name: str
    is_twin: bool

    def __str__(self) -> str:
        return f"{'twin of ' if self.is_twin else ''}{self.face.__name__}.{self.name}"


class Faces:
    """Everything that an application can get of a client, at a name server that is not there."""

    def __init__(self) -> None:
        self.client = Client("127.0.0.1:1")
        self.client.start()
        self.client.join_transactions("t", lambda asked: Decision.UNKNOWN)
        simple = Subscription(group="simple", topics={"t": "*"})
        push = Subscription(group="push", topics={"t": "*"})
        admin = self.client.admin
        self.by_type: dict[type, tuple[Any, Any]] = {
            Client: (self.client, self.client._client),
            AsyncTransactions: (self.client._client.transactions, None),
        }
        for face, attribute in (
            (self.client.pull_consumer("pull"), "_twin"),
            (self.client.simple_consumer(simple), "_twin"),
            (self.client.consume(push, handle), "_consumer"),
            (self.client.batcher(), "_batcher"),
            (admin.topics, "_twin"),
            (admin.groups, "_twin"),
            (admin.offsets, "_twin"),
            (admin.messages, "_twin"),
            (admin.dead_letters, "_twin"),
        ):
            self.by_type[type(face)] = (face, getattr(face, attribute))

    def call(self, verb: Verb, given: Mapping[str, Any]) -> None:
        """Call a verb on its loop, or here, and read what it yields."""
        face = self.by_type[verb.face][verb.is_twin]
        by_place, by_name = places(getattr(verb.face, verb.name), given)

        async def on_its_loop() -> None:
            outcome = getattr(face, verb.name)(*by_place, **by_name)
            if inspect.isasyncgen(outcome):
                _ = [each async for each in outcome]
            elif inspect.isawaitable(outcome):
                await outcome

        if verb.is_twin or inspect.iscoroutinefunction(getattr(face, verb.name)):
            thread = self.client._thread
            assert thread is not None
            thread.run(on_its_loop())
            return
        outcome = getattr(face, verb.name)(*by_place, **by_name)
        if isinstance(outcome, Iterator):
            list(outcome)
        elif isinstance(outcome, Future):
            outcome.result(60)


@pytest.fixture(scope="module")
def faces() -> Iterator[Faces]:
    made = Faces()
    try:
        yield made
    finally:
        made.client.close()


def parameters(verb: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return what a verb takes. `**misspelt` takes nothing: it only names what was meant."""
    own = list(inspect.signature(verb).parameters.values())[1:]
    return [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]


def places(verb: Callable[..., Any], given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments by place and by name; what a `*queues` gets is one of them."""
    by_place: list[Any] = []
    by_name: dict[str, Any] = {}
    for each in parameters(verb):
        value = given.get(each.name, each.default)
        if each.kind is inspect.Parameter.KEYWORD_ONLY:
            by_name[each.name] = value
        elif each.kind is not inspect.Parameter.VAR_POSITIONAL or each.name in given:
            by_place.append(value)
    return by_place, by_name


def verbs() -> Iterator[Verb]:
    for face in THREADS:
        for name, verb in inspect.getmembers(face, inspect.isfunction):
            if not name.startswith("_") and parameters(verb):
                yield Verb(face, name, is_twin=False)
                if name not in NO_TWIN:
                    yield Verb(face, name, is_twin=True)
    for name in ("join", "send", "end", "post", "commit_many"):
        yield Verb(AsyncTransactions, name, is_twin=False)


NO_TWIN = {"send_async", "commit_async", "send_half", "end_half", "join_transactions"}


def kind(hint: Any) -> tuple[str, bool]:
    """Return the first name in an annotation, and whether it may be None."""
    if isinstance(hint, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        return kind(parts[0])[0], NoneType in get_args(hint)
    if get_origin(hint) is Literal:
        return "Literal", False
    return (get_origin(hint) or hint).__name__, False


def names(wrong: Any) -> Iterator[str]:
    """Yield by what an error may name a value: itself, its type, or what is wrong in it."""
    yield from (repr(wrong)[:40], type(wrong).__name__)
    if isinstance(wrong, dict | list):
        yield from map(repr, wrong.values() if isinstance(wrong, dict) else wrong)


# The values of an old verb are checked, too.
@pytest.mark.filterwarnings("ignore:SimpleConsumer.give_up is called")
@pytest.mark.parametrize("verb", list(verbs()), ids=str)
def test_a_value_of_a_wrong_type_is_refused_by_its_name(faces: Faces, verb: Verb) -> None:
    function = getattr(verb.face, verb.name)
    needed = {
        each.name: RIGHT[kind(each.annotation)[0]]
        for each in parameters(function)
        if each.default is inspect.Parameter.empty
        and each.kind is not inspect.Parameter.VAR_POSITIONAL
    }
    for each in parameters(function):
        name, may_be_none = kind(each.annotation)
        for wrong in WRONG[name]:
            if wrong is None and may_be_none:
                continue
            with pytest.raises((UsageError, MessageRefused)) as refused:
                faces.call(verb, {**needed, each.name: wrong})
            text = str(refused.value)
            assert any(word in text for word in names(wrong)), f"{each.name}={wrong!r}: {text}"


@pytest.mark.parametrize(
    ("struct", "right"),
    [
        (Credentials, {"access_key": "me", "secret_key": "secret"}),
        (TLS, {"cert": "a.pem"}),
        (Sql, {"expression": "a = 1"}),
        (TopicChange, {}),
        (GroupChange, {}),
    ],
)
def test_a_setting_of_a_wrong_type_is_refused_by_its_name_and_not_shown(
    struct: type, right: dict[str, Any]
) -> None:
    for name, hint in struct.__annotations__.items():
        of_what, may_be_none = kind(hint)
        for wrong in WRONG[of_what]:
            if wrong is None and may_be_none:
                continue
            with pytest.raises(ConfigurationError, match=rf"^{name} of {struct.__name__} is of"):
                struct(**{**right, name: wrong})


@pytest.mark.parametrize("wrong", [Later("5"), Later(math.nan), Later(counts="no"), Dead(None)])  # type: ignore[arg-type]
def test_an_outcome_with_a_wrong_value_is_no_outcome(wrong: Outcome) -> None:
    with pytest.raises(UsageError, match="is of type"):
        checked_outcomes([CONSUMED, wrong], 2)


@pytest.mark.parametrize("face", [Client, AsyncClient])
@pytest.mark.parametrize(
    "given", [{"settings": {}}, {"settings": None}, {"middleware": None}, {"middleware": 5}]
)
def test_a_client_is_not_made_of_wrong_values(face: type, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(given))} is "):
        face("127.0.0.1:1", **given)
