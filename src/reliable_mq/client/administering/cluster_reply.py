"""Asking the brokers of a cluster: all of them at once, and telling apart who did not answer.

Receives what to ask and how to read an answer; hands on what was told, and why the rest was not. A
broker that says that it has no such thing has answered; one that answers what does not read has
not. Source: Apache RocketMQ `DefaultMQAdminExtImpl`, which ends at the first broker that fails.
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
    """Whom administration asks, and how long it waits."""

    name_servers: NameServers
    routes: RouteCache
    settings: ClientSettings


class ClusterReply(msgspec.Struct, Generic[T], frozen=True):
    """What brokers told together.

    `failures`: why others told nothing, by broker name; empty: all that were asked have told.
    """

    value: T
    failures: dict[str, ReliableMQError] = {}


Brokers = Mapping[str, Broker]
"""Brokers by name."""


def all_brokers(cluster: AdminTarget, only: Collection[str] = ()) -> Flow[dict[str, Broker]]:
    """Return the brokers that the name servers know, by name, sorted.

    Args:
        cluster: whose.
        only: their names, when not all are meant.

    Raises:
        NoRoute: when the name servers know none.
        UsageError: when they do not know one of `only`.
        RemoteError, Unavailable, ProtocolError: when none of them tells.
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
    """Ask brokers, each its own command, and return what each has told, by broker name.

    Args:
        cluster: whose time-out counts.
        brokers: where they are.
        commands: what each is asked, by broker name.
        read: makes a value of a reply whose code is 0, or raises.
        lacking: codes by which a broker says that it has no such thing; it is left out then.
        masters_only: a slave will not do for a master that is away, because this changes things.
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
    """Ask all `brokers` the same; see `ask_each`."""
    commands = dict.fromkeys(brokers, command)
    asked = ask_each(cluster, brokers, commands, read, lacking=lacking, masters_only=masters_only)
    return (yield from asked)


def put_each(
    cluster: AdminTarget,
    brokers: Brokers,
    commands: Mapping[str, Command],
    known: ClusterReply[dict[str, T]],
    *,
    dry_run: bool,
) -> Flow[ClusterReply[list[str]]]:
    """Have masters carry out changes, each its own, and return where it was done, by broker name.

    Args:
        cluster: whose time-out counts.
        brokers: where they are.
        commands: what each is to do, by broker name; who is not in it is as it is wanted.
        known: what all have told before.
        dry_run: say where it would be done, and do nothing.

    Raises:
        ReliableMQError: what went wrong, when nobody has it and nobody does it.
    """
    names, failures = sorted(commands), known.failures
    if commands and not dry_run:
        put = yield from ask_each(cluster, brokers, commands, nothing, masters_only=True)
        names, failures = sorted(put.value), {**known.failures, **put.failures}
    if failures and not (known.value or names):
        raise first_failure(failures)
    return ClusterReply(names, failures)


def merged(told: ClusterReply[dict[str, T]], merge: Callable[[Sequence[T]], U]) -> ClusterReply[U]:
    """Return what brokers told as one value.

    Raises:
        ReliableMQError: what went wrong, when none has told anything.
    """
    if not told.value and told.failures:
        raise first_failure(told.failures)
    return ClusterReply(merge(list(told.value.values())), told.failures)


def found(told: ClusterReply[dict[str, T]], missing: str) -> ClusterReply[dict[str, T]]:
    """Return what was told when any broker has it.

    Args:
        told: by broker name.
        missing: what to say when no broker has it.

    Raises:
        NotFound: when all have answered, and none has it.
        ReliableMQError: what went wrong, when some have not answered and the others have it not.
    """
    if told.value:
        return told
    if told.failures:
        raise first_failure(told.failures)
    raise FoundNowhere(missing)


def first_failure(failures: Mapping[str, ReliableMQError]) -> ReliableMQError:
    """Return one error for several: of the kind of the first, with the words of all."""
    first = next(iter(failures.values()))
    if len(failures) == 1:
        return first
    text = "; ".join(f"broker {name}: {error}" for name, error in failures.items())
    if isinstance(first, RemoteError):
        return remote_error(first.code, text)
    return type(first)(text)


def nothing(_: Command) -> None:
    """Read a reply that says no more than that it was done."""


def decoded(reply: Command, kind: type[T], what: str) -> T:
    """Return the body of a reply as a `kind`.

    Raises:
        ProtocolError: when it does not read; the text names `what`.
    """
    try:
        return fastjson.decode(reply.body, kind, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        raise ProtocolError(f"{what} does not read: {error}") from error


def epoch_ms(moment: datetime) -> int:
    """Return a moment in milliseconds since the epoch.

    Raises:
        UsageError: when it does not say in which time zone it is, or is before the epoch.
    """
    if moment.tzinfo is None:
        raise UsageError(f"{moment} is in no time zone: make it aware, as datetime.now(UTC) is")
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
    """Return the queue that is the key of a table, as Java writes it.

    Raises:
        ProtocolError: when it is none; the text names `what`.
    """
    try:
        queue = msgspec.convert(dict(key), _QueueKey)
    except (ValueError, TypeError) as error:  # a ValidationError is a ValueError
        raise ProtocolError(f"{what} does not read: {key!r} is no queue") from error
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)
