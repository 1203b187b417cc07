"""Wrong uses of a gRPC endpoint: one function each, which returns what the endpoint answered.

An answer is a code of the protocol. A call that ends without one gives the name of gRPC's status.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import grpc
from tests.gateway.grpc_client import GrpcClient, client_at
from tests.interop.bad_headers import CALL, RAW_ASKS, TYPE, Outcome, RawAsk, connected, head_of
from tests.interop.sdk_servers import Endpoint
from tests.waiting import until

from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.http2_frames import PREFACE, frame_of
from reliable_mq.gateway.message_facts import SERVICE

KINDS = {
    "plain": "NORMAL",
    "quiet": "NORMAL",
    "ordered": "FIFO",
    "late": "DELAY",
    "halves": "TRANSACTION",
}
GROUPS = ("readers", "others")
JAVA = {"x-mq-language": "JAVA"}  # Apache's proxy needs it for settings of a consumer
TOO_LARGE = b"x" * (4 * 1024 * 1024 + 1)
_NUMBERS = count(1)
_FAR = {"seconds": 9_999_999_999}


class BadCaller(NamedTuple):
    """One endpoint, and a client that has told nothing."""

    endpoint: Endpoint
    client: GrpcClient

    def told(self, topic: str = "plain", group: str = "readers") -> GrpcClient:
        """Return the client as a simple consumer."""
        self.client.consumer(group, topic)
        return self.client


Ask = Callable[[BadCaller], Outcome]


@contextmanager
def caller_at(endpoint: Endpoint) -> Iterator[BadCaller]:
    with client_at(endpoint.address, f"caller-{next(_NUMBERS)}", more=JAVA) as client:
        yield BadCaller(endpoint, client)


def prepare(endpoint: Endpoint) -> None:
    """Create the topics and groups of all calls."""
    for name, kind in KINDS.items():
        endpoint.make_topic(name, kind)
    for group in GROUPS:
        endpoint.make_group(group)


def wait_for_topics(endpoint: Endpoint) -> None:
    """Wait until an endpoint knows all topics."""
    with caller_at(endpoint) as caller:
        for name in KINDS:
            route = call("QueryRoute", topic={"name": name})
            until(lambda ask=route: ask(caller) == Code.OK)  # type: ignore[misc]


def answered(ask: Callable[[], Any]) -> Outcome:
    """Return the code of an answer; the name of gRPC's status if there is none."""
    try:
        answer = ask()
    except grpc.RpcError as error:
        return str(error.code().name)
    return int(answer.status.code)


def send(topic: str, body: bytes = b"body", **system: Any) -> Ask:
    return lambda at: answered(lambda: at.client.send(topic, body, **system))


def receive(
    group: str = "readers", topic: str = "plain", seconds: float = 30.0, **fields: Any
) -> Ask:
    def ask(at: BadCaller) -> Outcome:
        client = at.told()
        try:
            return int(client.receive(group, topic, seconds, **fields)[0])
        except grpc.RpcError as error:
            return str(error.code().name)

    return ask


def call(name: str, **fields: Any) -> Ask:
    return lambda at: answered(lambda: at.client.call(name, **fields))


def as_client(ask: Ask, client_id: str, **headers: str) -> Ask:
    """Ask as a client with this id, and no headers but these."""

    def other(at: BadCaller) -> Outcome:
        with client_at(at.endpoint.address, client_id, more=headers) as client:
            return ask(BadCaller(at.endpoint, client))

    return other


def _as_raw(ask: RawAsk, at: BadCaller) -> Outcome:
    return ask(at.endpoint)


def told(settings: dict[str, Any]) -> Ask:
    """Return the code in the first answer of a stream of commands, or how the stream ends."""

    def ask(at: BadCaller) -> Outcome:
        stream = at.client.telemetry()
        at.client.tell(settings=settings)
        return answered(lambda: next(stream))

    return ask


def taken(at: BadCaller, group: str = "readers") -> Any:
    """Send a message, and receive it."""
    client = at.told(group=group)
    body = b"%d" % next(_NUMBERS)
    assert client.send("plain", body).status.code == Code.OK
    for _ in range(10):
        for message in client.receive(group, "plain", 30.0)[2]:
            if message.body == body:
                return message
    raise AssertionError("the message does not come")


def acknowledged(at: BadCaller, handle: str, group: str = "readers", topic: str = "plain") -> Any:
    entries = [{"message_id": "M", "receipt_handle": handle}]
    names: dict[str, Any] = {"group": {"name": group}, "topic": {"name": topic}}
    return answered(lambda: at.client.call("AckMessage", **names, entries=entries))


def changed(at: BadCaller, handle: str, seconds: int = 30, group: str = "readers") -> Outcome:
    names: dict[str, Any] = {"group": {"name": group}, "topic": {"name": "plain"}}
    return answered(
        lambda: at.client.call(
            "ChangeInvisibleDuration",
            **names,
            message_id="M",
            receipt_handle=handle,
            invisible_duration={"seconds": seconds},
        )
    )


def handle_of(at: BadCaller) -> str:
    return str(taken(at).system_properties.receipt_handle)


def expired_of(at: BadCaller) -> str:
    """Return a handle as if its message had been received some minutes earlier."""
    parts = handle_of(at).split(" ")
    parts[1] = str(int(parts[1]) - 300_000)
    return " ".join(parts)


def twice(at: BadCaller) -> Outcome:
    handle = handle_of(at)
    assert acknowledged(at, handle) == Code.OK
    return int(acknowledged(at, handle))


def mixed(at: BadCaller) -> Outcome:
    handles = (handle_of(at), "nonsense")
    entries = [{"message_id": "M", "receipt_handle": each} for each in handles]
    names: dict[str, Any] = {"group": {"name": "readers"}, "topic": {"name": "plain"}}
    return answered(lambda: at.client.call("AckMessage", **names, entries=entries))


def undecodable(name: str) -> Ask:
    def ask(at: BadCaller) -> Outcome:
        method = at.client.channel.unary_unary(f"/{SERVICE}/{name}")
        try:
            method(b"\xff" * 100, metadata=at.client.headers, timeout=10)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "answered"

    return ask


def undecodable_command(at: BadCaller) -> Outcome:
    method = at.client.channel.stream_stream(f"/{SERVICE}/Telemetry")
    try:
        next(method(iter([b"\xff" * 100]), metadata=at.client.headers, timeout=10))
    except grpc.RpcError as error:
        return str(error.code().name)
    return "answered"


def a_thousand_at_once(at: BadCaller) -> Outcome:
    """Return the codes of a thousand calls of one client, on one connection."""
    with ThreadPoolExecutor(100) as threads:
        topic = {"name": "plain"}
        ask = call("QueryRoute", topic=topic, endpoints=at.client.endpoints)
        codes = {each.result() for each in [threads.submit(ask, at) for _ in range(1_000)]}
    return " ".join(sorted(map(str, codes)))


def cut(at: BadCaller) -> Outcome:
    """Cut a send in its middle, in three ways; return what another call is answered then."""
    head = head_of([*CALL, (b":path", f"/{SERVICE}/SendMessage".encode()), TYPE])
    begin = PREFACE + frame_of(4, 0, 0) + frame_of(1, 4, 1, head)
    half = frame_of(0, 0, 1, b"\0\0\0\x10\0" + b"x" * 99)
    for end in (b"", frame_of(3, 0, 1, (8).to_bytes(4)), frame_of(0, 1, 1, b"")):
        with connected(at.endpoint) as raw:
            raw.sendall(begin + half + end)
            raw.recv(65_536)
    return send("plain")(at)


NAMES: dict[str, Any] = {"group": {"name": "readers"}, "topic": {"name": "plain"}}
BEAT = {"group": {"name": "readers"}, "client_type": 3}
PRODUCER = {"client_type": 1, "publishing": {"topics": [{"name": "plain"}]}}
CONSUMER = {"client_type": 3, "subscription": {"group": {"name": "readers"}}}


def _messages(*topics: str, **second: Any) -> list[dict[str, Any]]:
    """Return a message for each topic; the second has these properties, too."""
    return [
        {"topic": {"name": topic}, "body": b"x", "system_properties": {"message_id": "M", **more}}
        for topic, more in zip(topics, ({}, second), strict=True)
    ]


ASKS: dict[str, Ask] = {
    "heartbeat of an unknown client": call("Heartbeat", **BEAT),
    "farewell of an unknown client": call("NotifyClientTermination", group={"name": "readers"}),
    "send without settings": send("plain"),
    "receive without settings": lambda at: int(at.client.receive("readers", "plain", 30.0)[0]),
    "send without a client id": as_client(send("plain"), ""),
    "heartbeat without a client id": as_client(call("Heartbeat", **BEAT), ""),
    "settings without a client id": as_client(told(PRODUCER), ""),
    "settings without a language": as_client(told(CONSUMER), "no-language"),
    "farewell without settings and a language": as_client(
        call("NotifyClientTermination"), "leaves"
    ),
    "settings that say nothing": told({"client_type": 1}),
    "acknowledge without a handle": lambda at: acknowledged(at, ""),
    "acknowledge nonsense": lambda at: acknowledged(at, "what is this"),
    "acknowledge an expired handle": lambda at: acknowledged(at, expired_of(at)),
    "acknowledge for another group": lambda at: acknowledged(at, handle_of(at), "others"),
    "acknowledge for an unknown group": lambda at: acknowledged(at, handle_of(at), "nobody"),
    "acknowledge for another topic": lambda at: acknowledged(at, handle_of(at), topic="late"),
    "acknowledge twice": twice,
    "acknowledge right and wrong handles": mixed,
    "acknowledge nothing": call("AckMessage", **NAMES),
    "change without a handle": lambda at: changed(at, ""),
    "change nonsense": lambda at: changed(at, "what is this"),
    "change an expired handle": lambda at: changed(at, expired_of(at)),
    "change for another group": lambda at: changed(at, handle_of(at), group="others"),
    "change to 0 s": lambda at: changed(at, handle_of(at), 0),
    "change to -1 s": lambda at: changed(at, handle_of(at), -1),
    "change to 12 h and 1 s": lambda at: changed(at, handle_of(at), 43_201),
    "forward nonsense to the dead letters": call(
        "ForwardMessageToDeadLetterQueue",
        **NAMES,
        receipt_handle="what is this",
        message_id="M",
        delivery_attempt=1,
        max_delivery_attempts=1,
    ),
    "receive for 9 s": receive(invisible_duration={"seconds": 9}),
    "receive for 0 s": receive(invisible_duration={"seconds": 0}),
    "receive for -5 s": receive(invisible_duration={"seconds": -5}),
    "receive for 12 h and 1 s": receive(invisible_duration={"seconds": 43_201}),
    "receive for an unknown group": receive("nobody-made-it"),
    "receive for no group": receive(""),
    "receive for a group with a space": receive("bad group"),
    "receive from an unknown topic": receive(topic="nowhere"),
    "receive from no topic": receive(topic=""),
    "receive with a poll of 3 s": receive(topic="quiet", long_polling_timeout={"seconds": 3}),
    "receive with a deadline of 4 s": receive(seconds=4.0),
    "receive with a broken filter": receive(filter_expression={"type": 1, "expression": "||"}),
    "receive with broken SQL": receive(filter_expression={"type": 2, "expression": "a >"}),
    "send to an unknown topic": send("nowhere"),
    "send to no topic": send(""),
    "send to a topic with a space": send("bad topic"),
    "send to a system topic": send("SCHEDULE_TOPIC_XXXX"),
    "send a message group to a plain topic": send("plain", message_group="g"),
    "send a plain message to a FIFO topic": send("ordered"),
    "send a plain message to a delay topic": send("late"),
    "send a plain message to a transaction topic": send("halves"),
    "send a delayed message to a plain topic": send(
        "plain", message_type=3, delivery_timestamp={"seconds": 4_000_000_000}
    ),
    "send a half message to a plain topic": send("plain", message_type=4),
    "send for a time too late": send("late", message_type=3, delivery_timestamp=_FAR),
    "send a body over the limit": send("plain", TOO_LARGE),
    "send no body": send("plain", b""),
    "send without a message id": send("plain", message_id=" "),
    "send a tag with a bar": send("plain", tag="a|b"),
    "send a blank key": send("plain", keys=[" "]),
    "send a long message group": send("ordered", message_type=2, message_group="g" * 65),
    "send no messages": call("SendMessage", messages=[]),
    "send to two topics": call("SendMessage", messages=_messages("plain", "late")),
    "send two kinds in one call": call(
        "SendMessage", messages=_messages("plain", "plain", message_type=4)
    ),
    "send two encodings in one call": call(
        "SendMessage", messages=_messages("plain", "plain", body_encoding=2)
    ),
    "end a transaction in no way": call(
        "EndTransaction", topic={"name": "halves"}, transaction_id="M@b@1@1"
    ),
    "end a transaction without an id": call(
        "EndTransaction", topic={"name": "halves"}, transaction_id="", resolution=1
    ),
    "end an unknown transaction": call(
        "EndTransaction", topic={"name": "halves"}, transaction_id="ID", resolution=1
    ),
    "route without endpoints": call("QueryRoute", topic={"name": "plain"}),
    "route of an unknown topic": call("QueryRoute", topic={"name": "nowhere"}),
    "route of no topic": call("QueryRoute"),
    "assignment of an unknown topic": call(
        "QueryAssignment", topic={"name": "nowhere"}, group={"name": "readers"}
    ),
    "assignment of no group": call("QueryAssignment", topic={"name": "plain"}),
    "heartbeat without a group": lambda at: answered(
        lambda: at.told().call("Heartbeat", client_type=3)
    ),
    "lite subscription": call("SyncLiteSubscription", topic={"name": "plain"}),
    "recall nonsense": call("RecallMessage", topic={"name": "late"}, recall_handle="nonsense"),
    "a request that is no protobuf": undecodable("SendMessage"),
    "a command that is no protobuf": undecodable_command,
    "a method that nobody knows": undecodable("Nothing"),
    "a thousand calls at once": a_thousand_at_once,
    "a call after sends that were cut": cut,
    **{name: partial(_as_raw, ask) for name, ask in RAW_ASKS.items()},
}
