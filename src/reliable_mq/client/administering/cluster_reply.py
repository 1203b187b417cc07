"""Asks all brokers of a cluster at the same time, and separates answers from failures.

It receives requests and a function that decodes answers. It returns the decoded answers, and the
errors of the other brokers. "There is no such thing" is an answer; an answer that cannot be decoded
is an error. Source: Apache RocketMQ `DefaultMQAdminExtImpl`, which ends at the first failed broker.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.connecting.routes import Broker, RouteCache, decode_cluster
from reliable_mq.client.flow import Call, Flow, call_all, reply_of, succeeded
from reliable_mq.client.settings import ClientSettings
from reliable_mq.decodable import decodable
from reliable_mq.errors import (
    FoundNowhere,
    NoRoute,
    ProtocolError,
    ReliableMQError,
    RemoteError,
    UsageError,
)
from reliable_mq.message import MessageQueue
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.remote_faults import remote_error

T = TypeVar("T")
U = TypeVar("U")


class AdminTarget(NamedTuple):
    """The cluster that administration asks, and its timeout."""

    name_servers: NameServers
    routes: RouteCache
    settings: ClientSettings


class ClusterReply(msgspec.Struct, Generic[T], frozen=True):
    """The combined answers of brokers.

    `failures`: the errors of brokers without an answer, by broker name; empty: all have answered.
    """

    value: T
    failures: dict[str, ReliableMQError] = {}


Brokers = Mapping[str, Broker]
"""Brokers by name."""


def all_brokers(cluster: AdminTarget, only: Collection[str] = ()) -> Flow[dict[str, Broker]]:
    """Return the brokers that the name servers know, by name, sorted.

    Args:
        cluster: the cluster to ask.
        only: names of brokers; empty: all.

    Raises:
        NoRoute: when the name servers know none.
        UsageError: when they do not know one of `only`.
        RemoteError, Unavailable, ProtocolError: when none of them answers.
    """
    reply = yield from cluster.name_servers.ask(request(RequestCode.GET_BROKER_CLUSTER_INFO))
    brokers = {broker.name: broker for broker in decode_cluster(succeeded(reply).body)}
    if not brokers:
        raise NoRoute("the name servers know no broker")
    unknown = sorted(set(only) - brokers.keys())
    if unknown:
        raise UsageError(
            f"the name servers know no broker {', '.join(unknown)}; there are"
            f" {', '.join(sorted(brokers))}"
        )
    return {name: brokers[name] for name in sorted(only or brokers)}


def ask_each(
    cluster: AdminTarget,
    brokers: Brokers,
    commands: Mapping[str, Command],
    read: Callable[[Command], T],
    *,
    lacking: Collection[int] = (),
    masters_only: bool = False,
) -> Flow[ClusterReply[dict[str, T]]]:
    """Send each broker its own command; return the decoded answers by broker name.

    Args:
        cluster: has the timeout.
        brokers: the brokers and their addresses.
        commands: the command for each broker, by broker name.
        read: decodes a reply with code 0, or raises.
        lacking: codes for "there is no such thing"; such brokers are left out.
        masters_only: do not use a slave when its master is away, because the command changes
            things.
    """
    calls: dict[str, Call] = {}
    failures: dict[str, ReliableMQError] = {}
    for name, command in commands.items():
        broker = brokers[name]
        address = broker.master if masters_only else broker.to_read_from(0)
        if address is None:
            failures[name] = NoRoute(f"no name server knows the master of broker {name}")
        else:
            calls[name] = Call(address, command, cluster.settings.request_timeout_seconds)
    answers = yield from call_all(list(calls.values()))
    told: dict[str, T] = {}
    for name, answer in zip(calls, answers, strict=True):
        try:
            reply = reply_of(answer)
            if reply.code not in lacking:
                told[name] = read(succeeded(reply))
        except ReliableMQError as error:
            failures[name] = error
    return ClusterReply(told, failures)


def ask_all(
    cluster: AdminTarget,
    brokers: Brokers,
    command: Command,
    read: Callable[[Command], T],
    *,
    lacking: Collection[int] = (),
    masters_only: bool = False,
) -> Flow[ClusterReply[dict[str, T]]]:
    """Send the same command to all `brokers`; see `ask_each`."""
    commands = dict.fromkeys(brokers, command)
    asked = ask_each(cluster, brokers, commands, read, lacking=lacking, masters_only=masters_only)
    return (yield from asked)


def change_each(
    cluster: AdminTarget,
    brokers: Brokers,
    commands: Mapping[str, Command],
    known: ClusterReply[dict[str, T]],
    *,
    dry_run: bool,
) -> Flow[ClusterReply[list[str]]]:
    """Have masters make changes, each its own; return where they were made, by broker name.

    Args:
        cluster: has the timeout.
        brokers: the brokers and their addresses.
        commands: the command for each broker, by name; brokers without one need no change.
        known: the brokers' earlier answers.
        dry_run: return where it would be done, but do nothing.

    Raises:
        ReliableMQError: the error, when no broker has it already and no broker does it.
    """
    names, failures = sorted(commands), known.failures
    if commands and not dry_run:
        put = yield from ask_each(cluster, brokers, commands, nothing, masters_only=True)
        names, failures = sorted(put.value), {**known.failures, **put.failures}
    if failures and not (known.value or names):
        raise first_failure(failures)
    return ClusterReply(names, failures)


def merged(
    answers: ClusterReply[dict[str, T]], merge: Callable[[Sequence[T]], U]
) -> ClusterReply[U]:
    """Return the answers of brokers merged into one value.

    Raises:
        ReliableMQError: the error, when no broker has answered.
    """
    if not answers.value and answers.failures:
        raise first_failure(answers.failures)
    return ClusterReply(merge(list(answers.value.values())), answers.failures)


def check_found(answers: ClusterReply[dict[str, T]], missing: str) -> ClusterReply[dict[str, T]]:
    """Return the answers if at least one broker has the thing.

    Args:
        answers: answers by broker name.
        missing: the error text when no broker has it.

    Raises:
        NotFound: when all brokers have answered, and none has it.
        ReliableMQError: the error, when some brokers failed and no other one has it.
    """
    if answers.value:
        return answers
    if answers.failures:
        raise first_failure(answers.failures)
    raise FoundNowhere(missing)


def first_failure(failures: Mapping[str, ReliableMQError]) -> ReliableMQError:
    """Return one error for several: the kind of the first, with all texts."""
    first = next(iter(failures.values()))
    if len(failures) == 1:
        return first
    text = "; ".join(f"broker {name}: {error}" for name, error in failures.items())
    if isinstance(first, RemoteError):
        return remote_error(first.code, text)
    return type(first)(text)


def nothing(_: Command) -> None:
    """Decode a reply without content."""


def decoded(reply: Command, kind: type[T], what: str) -> T:
    """Return the body of a reply as a `kind`.

    Raises:
        ProtocolError: when it cannot be decoded; the text names `what`.
    """
    try:
        return fastjson.decode(reply.body, kind, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise ProtocolError(f"{what} cannot be decoded: {error}") from error


def epoch_ms(moment: datetime) -> int:
    """Return a time in milliseconds since the epoch.

    Raises:
        UsageError: when it has no time zone, or is before the epoch.
    """
    if moment.tzinfo is None:
        raise UsageError(f"{moment} has no time zone: add one, such as datetime.now(UTC)")
    milliseconds = int(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise UsageError(f"{moment} is before 1970")
    return milliseconds


@decodable
class _QueueKey(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int


def queue_of(key: Any, what: str) -> MessageQueue:
    """Return the queue in the key of a table, as Java writes it.

    Raises:
        ProtocolError: when it is not a queue; the text names `what`.
    """
    try:
        queue = msgspec.convert(dict(key), _QueueKey)
    except (ValueError, TypeError) as error:  # a ValidationError is a ValueError
        raise ProtocolError(f"{what} cannot be decoded: {key!r} is not a queue") from error
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
